"""The publications: what each claims, and what runs of this tool say of it."""
