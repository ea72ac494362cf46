// Package tunnel lets a server reach the kubelets and pods of nodes that it
// cannot dial: behind NAT, behind firewalls. Each agent keeps a connection open
// to every server; through it the server asks the agent to dial. The supervisor
// serves the Server at join.ConnectPath, the API server dials through it,
// and the agent package runs the Agent as a component.
//
// The connection starts as an HTTP/1.1 request with the node's certificate,
// upgraded to HTTP/2 with the roles turned around: the agent serves, the server
// is the client, and each of its CONNECT requests is a connection to a target.
// HTTP/2 brings what else would have to be written: streams with flow control of
// their own, pings that notice a dead link, and an answer to each dial.
package tunnel

import "time"

// protocol is what the connection is upgraded to.
const protocol = "kedge-tunnel"

// A connection on which nothing has come for pingAfter is asked for a sign of
// life, and closed if that does not come within pingPatience. Both ends do so.
const (
	pingAfter    = 10 * time.Second
	pingPatience = 10 * time.Second
)
