"""The losses of alignment, as their papers and trainers write them: DPO's, PPO's two, GRPO's.

Sources: Rafailov et al. 2023, arXiv:2305.18290; Schulman et al. 2017, arXiv:1707.06347; Shao et al. 2024, arXiv:2402.03300.
"""
