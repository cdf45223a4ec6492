# Several machines, several builds: bundles, the lock of hub models, the timeline of builds, bisection.
