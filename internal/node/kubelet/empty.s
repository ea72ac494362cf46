// The functions that upstream_volumes.go links to have no bodies there. The compiler allows that only in a package with a file of assembly.
