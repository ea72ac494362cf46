// Package tunnel lets a server reach the kubelets and pods of nodes that it cannot dial,
// such as nodes behind NAT or firewalls. Each agent keeps a connection open to every
// server. Through it the server asks the agent to dial. The supervisor serves the Server
// at join.ConnectPath, the API server dials through it, and the agent package runs the
// Agent as a component.
//
// The connection starts as an HTTP/1.1 request with the node's certificate, upgraded to
// HTTP/2 with the roles turned around: the agent serves, and the server is the client.
// Each CONNECT request of the server is a connection to a target. HTTP/2 brings streams
// with flow control of their own, pings that notice a dead link, and an answer to each
// dial.
package tunnel

import "time"

// protocol is the name of the protocol that the connection is upgraded to.
const protocol = "kedge-tunnel"

// meshTarget is the target of the stream of the mesh. It is no address.
const meshTarget = "mesh"

// If nothing has come on a connection for pingAfter, it is asked for a sign of life. If
// none comes within pingPatience, it is closed. Both ends do so.
const (
	pingAfter    = 10 * time.Second
	pingPatience = 10 * time.Second
)
