// Package hosts makes hosts from network, mount, UTS, IPC and PID namespaces of one machine, connects
// them by networks, and starts commands on them. `kedge run` and `kedge cluster` call it, and so does the
// harness of the tests. It needs root.
//
// A host's first process is the executable that calls Start, started once more. There, the init function of this
// package does the work of the first process, and never returns.
//
// Nothing of a host outlives that program, however it ends. The kernel kills the host's first process
// together with the program, and all other processes of the host with the first. Mounts and interfaces
// disappear with the namespaces. Only cgroups and folders stay: somebody else has to remove them.
package hosts
