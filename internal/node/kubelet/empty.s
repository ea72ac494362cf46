// The functions that linked.go links to have no bodies there. The compiler allows that only in a package with a file of assembly.
