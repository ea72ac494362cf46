// Package upstream is the tripwire: its tests fail if code in another module changes
// that kedge follows or relies on.
//
// A directive stands where kedge does so, and names the module, the file in it, and
// what in the file. Without a name it is the whole file:
//
//	//upstream:follows k8s.io/kubernetes/pkg/kubelet/config/file_linux.go sourceFile.consumeWatchEvent
//	//upstream:relies-on std/embed/embed.go FS file
//
// With follows the code here does what the code there does, changed for kedge: a fix
// there is wanted here too. Such code stands in files upstream_*.go, whose first lines
// name what they follow. With relies-on the code here works only as long as the code
// there is as it is: it reads a private field, knows a message by its text, or counts
// on an order of calls.
//
// Names are those of functions, types, constants and variables, and Type.Method for
// methods. The file golden has a hash of each.
//
// The versions of modules are those of go.mod. A module of which kedge uses no package is
// in no go.mod: it is in the table outsiders, with its version. The source of all modules
// is taken from the module cache, or downloaded into it.
//
// No package imports this one: `make upstream` and `go test` run it.
package upstream
