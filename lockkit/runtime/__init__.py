"""What performs the rules: blocking and asyncio runners, renewal, forks, threads and exits."""
