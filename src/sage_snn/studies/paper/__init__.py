"""The paper: how it sets its policies, what it reports, and what it claims."""
