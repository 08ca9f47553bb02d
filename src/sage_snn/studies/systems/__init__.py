"""Whole systems side by side: what each reached and cost, which are apart, and what papers print of them."""
