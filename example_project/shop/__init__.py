"""The shop: products with stock, orders, and four ways to sell the last one."""
