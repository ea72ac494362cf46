package join

import (
	"errors"
	"net/netip"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// The paths at which a server answers nodes and servers, before and after they join. The
// supervisor's table of routes says who may call them.
const (
	CACertsPath = "/cacerts"
	ClusterPath = "/v1-kedge/cluster"
	JoinPath    = "/v1-kedge/join"
	RenewPath   = "/v1-kedge/renew"
	// ConnectPath is where nodes open their tunnels.
	ConnectPath = "/v1-kedge/connect"
	// SecretsPath and MemberPath are for servers that join.
	SecretsPath = "/v1-kedge/server/secrets"
	MemberPath  = "/v1-kedge/server/member"
	// TokenPath is where the cluster's token is replaced.
	TokenPath = "/v1-kedge/server/token"
	// EtcdPath is where servers without etcd ask a server that has it whether its etcd
	// works, and which servers have etcd.
	EtcdPath = "/v1-kedge/server/etcd"
)

// defaultSettings are those of a server that is too old to say some of them.
func defaultSettings() Settings { return Settings{Cluster: config.Default().Cluster} }

// Settings is what a server tells its nodes about the cluster.
type Settings struct {
	// Version is the version of the server's build: Kubernetes's with kedge's own.
	Version string         `json:"version"`
	Cluster config.Cluster `json:"cluster"`
	// Servers are HOST:PORT of the servers with an API server. It is set only if the
	// server that answers runs none itself.
	Servers []string `json:"servers,omitempty"`
	// Authorities identifies the authorities that the servers sign with and trust. A
	// node that has others renews its certificates.
	Authorities string `json:"authorities,omitempty"`
	// Registers says that the server ties certificates to a registration of the node. A
	// node whose certificates are not tied to one renews them.
	Registers bool `json:"registers,omitempty"`
}

// Request asks a server for the certificates of a node.
type Request struct {
	Node      string       `json:"node"`
	Addresses []netip.Addr `json:"addresses"`
	// Password protects the node's name. Agents of an older kedge leave it empty in a
	// renewal.
	Password string `json:"password,omitempty"`
	// Requests is the result of pki.Node.Requests.
	Requests map[string][]byte `json:"requests"`
}

// Response answers a Request. All values are in PEM.
type Response struct {
	ServerCA     []byte            `json:"serverCA"`
	ClientCA     []byte            `json:"clientCA"`
	Certificates map[string][]byte `json:"certificates"`
}

// MemberRequest asks for the membership of a new server in the cluster's etcd.
type MemberRequest struct {
	// Name is the member's name, and PeerURL is where the other members reach it.
	Name    string `json:"name"`
	PeerURL string `json:"peerURL"`
}

// MemberResponse answers a MemberRequest.
type MemberResponse struct {
	// InitialCluster lists all members in the form of etcd's flag: NAME=URL,...
	InitialCluster string `json:"initialCluster"`
}

// EtcdMembers is the answer at EtcdPath: HOST:PORT of the servers that have etcd.
type EtcdMembers struct {
	Servers []string `json:"servers"`
}

// RotateRequest is what a client sends to TokenPath.
type RotateRequest struct {
	// Token is the new token, or its secret alone. If it is empty, the server makes one.
	Token string `json:"token,omitempty"`
}

// RotateResponse is the answer at TokenPath: the new token.
type RotateResponse struct {
	Token string `json:"token"`
}

// ErrNotNow marks errors that pass by themselves: the caller should try again later.
var ErrNotNow = errors.New("not now")

// NotNow returns an ErrNotNow that says why.
func NotNow(why string) error { return notNow(why) }

type notNow string

func (n notNow) Error() string      { return string(n) }
func (notNow) Is(target error) bool { return target == ErrNotNow }
