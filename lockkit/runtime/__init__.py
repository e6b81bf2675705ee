"""What performs the rules: blocking and asyncio drivers, renewal, forks, threads and exits."""
