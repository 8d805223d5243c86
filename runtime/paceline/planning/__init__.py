"""What an instance can serve, by arithmetic on published numbers. Nothing here is measured."""
