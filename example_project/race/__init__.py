"""Two machines, many buyers, one product: who sells what it does not have?"""
