"""Completion of the command in a shell, made from the command's parser, so that both know the same words."""

import argparse
from collections.abc import Iterable, Mapping

SHELLS = ("bash", "zsh", "fish")


def words(
    commands: Mapping[str, argparse.ArgumentParser], names: Mapping[str, Iterable[str]]
) -> dict[str, dict[str, tuple]]:
    """{command: {option: the words that may follow it}}; under the option "" words without an option.

    Args:
        names: from an option's destination, "model", to the words that it takes.
    """
    found = {}
    for name, command in commands.items():
        options = {}
        for action in command._actions:
            for option in action.option_strings or [""]:
                options[option] = (*options.get(option, ()), *names.get(action.dest, ()))
        found[name] = options
    return found


def script(shell: str, said: Mapping[str, Mapping[str, tuple]], helps: Mapping[str, str]) -> str:
    """The shell's program. helps: the help of each command."""
    return _fish(said, helps) if shell == "fish" else _bash(said, zsh=shell == "zsh")


def _bash(said, zsh):
    # A bare zsh completes nothing yet.
    ready = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }"
    lines = [ready, "autoload -U +X bashcompinit && bashcompinit"] if zsh else []
    lines += [
        "_everybyte() {",
        '  local words= current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  case "$COMP_CWORD ${COMP_WORDS[1]} $before" in',
        f'    "1 "*) words="{" ".join(said)} --help --version" ;;',
    ]
    for command, options in said.items():
        lines += [f'    *" {command} {o}") words="{" ".join(v)}" ;;' for o, v in options.items() if o and v]
        lines.append(f'    *" {command} "*) words="{" ".join([*filter(None, options), *options.get("", ())])}" ;;')
    lines += ["  esac", '  COMPREPLY=($(compgen -W "$words" -- "$current"))', "}"]
    return "\n".join([*lines, "complete -o default -F _everybyte everybyte"])


def _fish(said, helps):
    lines = []
    for command, options in said.items():
        text = helps[command].replace("'", "\\'")
        lines.append(f"complete -c everybyte -f -n __fish_use_subcommand -a {command} -d '{text}'")
        here = f"complete -c everybyte -n '__fish_seen_subcommand_from {command}'"
        if options.get(""):
            lines.append(f"{here} -a '{' '.join(options[''])}'")
        for option, values in options.items():
            if option.startswith("--"):
                lines.append(f"{here} -l {option[2:]}" + (f" -x -a '{' '.join(values)}'" if values else ""))
    return "\n".join(lines)
