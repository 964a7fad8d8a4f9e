"""From a loop to a scheduling problem: who runs its statements, in how many parts and versions, what each costs."""
