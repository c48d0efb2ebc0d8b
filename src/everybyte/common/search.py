"""Search for the largest or the smallest whole number that fits, with few measurements, since each takes time."""


def most(over, low, high):
    """The largest value that is not over the limit, for a growing measure; None where there is none.

    Peaks are nearly straight lines, or two with a bend. So a line through two values guesses the border, and every third guess
    halves the rest, for other measures.
    """
    below = over(low)
    if below > 0:
        return None
    slope, bracketed, guess, guesses = 0, False, low + 1, 0
    while low + bracketed < high:
        guess = max(low + 1, min(guess, high - bracketed))
        found, guesses = over(guess), guesses + 1
        if found <= 0:
            slope, low, below = (found - below) / (guess - low), guess, found
        else:
            slope, high, bracketed = (found - below) / (guess - low), guess, True
        guess = low + (int(-below / slope) if slope > 0 else 3 * low)
        if bracketed and guesses % 3 == 0:
            guess = (low + high) // 2
    return low


def fewest(over, low, high, slack):
    """(the smallest value that is not over the limit, True); or (the value that is the least over it, False).

    With more GPUs each has less, with two exceptions: a single one needs no buffers of communication, and each tensor is padded
    to a multiple of the GPUs. So it doubles the value until it is enough, bisects, and then goes down until a value is over by
    more than `slack`.
    """
    seen, value = {}, low
    while value <= high:
        seen[value] = over(value)
        if seen[value] <= 0:
            break
        value *= 2
    else:
        return min(seen, key=seen.get), False
    below = value // 2 if value > low else low - 1
    while value - below > 1:
        middle = (below + value) // 2
        below, value = (below, middle) if over(middle) <= 0 else (middle, value)
    ahead = value - 1
    while ahead >= low and (more := over(ahead)) <= slack:
        value, ahead = (ahead if more <= 0 else value), ahead - 1
    return value, True


def beyond(over, value, low, high, slack):
    """The largest value that is not over the limit, upward from `value` or `low`, for a peak that may fall by `slack` bytes.

    With more tokens, the number of the loss's chunks may rise or fall, and the bytes of rounding with it: less than two blocks
    per chunk, for its share of the loss and of the input's gradient. All else only grows.
    """
    ahead = value or low
    while ahead < high and over(ahead) <= slack:
        ahead += 1
        if over(ahead) <= 0:
            value = ahead
    return value


def largest_below(ends, low, high):
    """The largest value below `high` for which `ends` is false. From some value on it is true; None where it always is."""
    step, bad = 1, high
    while ends(value := max(low, bad - step)):
        if value == low:
            return None
        bad, step = value, 2 * step
    while bad - value > 1:
        middle = (value + bad) // 2
        value, bad = (value, middle) if ends(middle) else (middle, bad)
    return value
