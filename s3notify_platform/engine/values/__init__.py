"""What is handed from step to step, each declared once: plans, outcomes, results, rows between driver and tasks."""
