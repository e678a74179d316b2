"""Every message that crosses a service's border: events (facts), questions with their answers, and the fold of a run."""
