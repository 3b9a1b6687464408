"""Who is connected to the coordinator, and the requests that wait for their answers."""
