"""Extensions: each directory adds job types, routes and commands to the scheduler."""
