// Package upgradecontrol carries out Plans, which say what version of kedge the nodes of the cluster
// run. Plans runs on every server with an API server: it tells each node what to run, and keeps
// copies of the executables. The Controller runs on the elected server: it finds out what a Plan
// means, chooses the nodes whose turn it is, and writes the statuses of Plans. What a node does
// is in internal/node/upgrade.
//
// # Steps
//
// The status of a Plan has everything that is needed to go on (progress.go), because the elected
// server upgrades itself, too. Each step is a function of the Plan, the Nodes and the time. Its
// result is written before anything happens because of it, so another server can take over after
// any step:
//
//	a new spec   -> Resolving: the version, and then executables for the nodes' architectures
//	node Pending -> Draining, if the Plan says so: cordoned, and pods evicted
//	             -> Ordered, with a new ID: its server tells it to run the executable
//	             -> Upgraded, when it says so, is Ready, and its kubelet has the version
//	             -> Failed, when it says so, or when nothing has changed for a while
//
// Servers come first, one at a time, while all servers are Ready. The one that runs the
// controller is the last one with an API server. After the first node that has failed, no other
// node begins.
//
// # Whom this trusts
//
// Nodes run what a Plan says as root, so whoever may write Plans is root on all nodes. Only
// cluster-admin may: no rights are aggregated to the roles admin, edit and view.
//
// The credentials of a node, which somebody may steal, can do this:
//
//   - It gets only its own orders, and can get executables. The supervisor knows it by its
//     certificate. Nothing in an executable is secret.
//   - It writes its own report into its own Node. It can say that it is upgraded, or that it has
//     failed, which stops the Plan. It cannot write Plans or other Nodes, so it can neither
//     change what others run nor report for them. Its report is only a text for people, except
//     for the ID and the stage.
//   - It can say which architecture it has. Then the server gets a file of the same release for
//     this architecture, or the Plan stops.
//   - A kubelet may not set the labels that say who is a server. It may set others of its Node,
//     and leave or join a Plan with a nodeSelector by that.
//
// What comes from outside is trusted by its digest. A Plan with a file has the digest. For a
// release, SHA256SUMS has it. That is trusted because of TLS, or of a signature (package
// release). A node compares the digest again before it runs anything. A channel has no signature,
// so it brings no node to an older version.
//
// A node writes its report, version and architecture itself. They can be long and unprintable. People
// read them in a terminal, and the status of a Plan has little room. Therefore nodesOf and
// upgrades.ParseReport let only short, printable text through.
package upgradecontrol
