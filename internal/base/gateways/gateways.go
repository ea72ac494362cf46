// Package gateways has what all parts of kedge's gateway agree on: names, and what a node
// tells about its sockets. The controller on a server and the gateway of each node use it.
package gateways

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

const (
	// User is the user of the gateway on nodes.
	User = "system:kedge:gateway"
	// ControllerUser is the user of the controller on the elected server.
	ControllerUser = "system:kedge:gateway-controller"

	// ListeningAnnotation is on a Node. The node says in it which sockets its gateway has
	// open, as FormatListening writes them. A node without it serves nothing.
	ListeningAnnotation = "gateway.kedge.dev/listening"

	// FrontLabel is on each Service by which clients reach Gateways or Ingresses. Its value is
	// the name of the Service, so that a copy of the Service under another name is not taken for
	// one.
	FrontLabel = "gateway.kedge.dev/front"

	// AllowAnnotation is on an Ingress, a Gateway, a ListenerSet or a route. It has the names of
	// other namespaces, separated by commas, that may serve the hosts of this object, too.
	AllowAnnotation = "gateway.kedge.dev/allow-namespaces"
	// HostsAnnotation is on a Namespace. It has host names, separated by commas, that belong to
	// the namespace, also if another one has claimed them before. Only users who may update all namespaces
	// may change it (controlplane/restriction).
	HostsAnnotation = "gateway.kedge.dev/hosts"
)

// maxListening is how many bytes ParseListening reads. Kubernetes limits all annotations of
// an object to 256 KiB together. All node ports take 25 KiB.
const maxListening = 256 << 10

// Port is a port that a node listens on: routing.Socket.Port, not the port that clients
// connect to.
type Port struct {
	Number    uint16
	Transport routing.Transport
}

// String returns the port as NUMBER/TRANSPORT.
func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Transport) }

// FormatListening writes ports as the value of ListeningAnnotation: NUMBER/TRANSPORT of each,
// sorted by number, separated by commas. Without ports, the text is empty. Then the node has no
// annotation.
func FormatListening(ports []Port) string {
	sorted := slices.SortedFunc(slices.Values(ports), func(a, b Port) int {
		if a.Number != b.Number {
			return int(a.Number) - int(b.Number)
		}
		return strings.Compare(string(a.Transport), string(b.Transport))
	})
	var texts []string
	for _, port := range slices.Compact(sorted) {
		texts = append(texts, port.String())
	}
	return strings.Join(texts, ",")
}

// ParseListening reads the value of ListeningAnnotation. A node writes it, so it may be
// anything: an error means that the node serves nothing.
func ParseListening(value string) (map[Port]bool, error) {
	if len(value) > maxListening {
		return nil, errors.New("the list of ports is too long")
	}
	ports := map[Port]bool{}
	if value == "" {
		return ports, nil
	}
	for text := range strings.SplitSeq(value, ",") {
		port, err := ParsePort(text)
		if err != nil {
			return nil, err
		}
		ports[port] = true
	}
	return ports, nil
}

// ParsePort reads NUMBER/TRANSPORT.
func ParsePort(text string) (Port, error) {
	digits, transport, _ := strings.Cut(text, "/")
	number, err := strconv.ParseUint(digits, 10, 16)
	port := Port{uint16(number), routing.Transport(transport)}
	// The number may be written in one way only.
	if err != nil || number == 0 || port.String() != text || port.Transport != routing.TCP && port.Transport != routing.UDP {
		return Port{}, fmt.Errorf("invalid port %q: want NUMBER/tcp or NUMBER/udp", text)
	}
	return port, nil
}
