// Package member asks and moves etcd's members on servers with embedded etcd. Tests below tests/ call it.
package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	// patience limits how long anything may take that the members do by themselves.
	patience = 4 * time.Minute
	tlsDir   = "/var/lib/kedge/server/tls/etcd"
)

// WaitVoters waits until the voters, as a server sees them, are the members of these nodes.
func WaitVoters(t *testing.T, server *harness.Server, nodes ...string) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("etcd's members to be %v", nodes), func() error {
		members, err := List(server.Host)
		if err != nil {
			return err
		}
		var found []string
		for _, m := range members {
			if !m.IsLearner && len(m.Name) > 9 {
				found = append(found, m.Name[:len(m.Name)-9])
			}
		}
		if len(found) != len(nodes) {
			return fmt.Errorf("they are %v", found)
		}
		for _, node := range nodes {
			if !strings.Contains(" "+strings.Join(found, " ")+" ", " "+node+" ") {
				return fmt.Errorf("they are %v", found)
			}
		}
		return nil
	})
}

// List asks a host's etcd member for all members.
func List(host *harness.Host) (all []*etcdserverpb.Member, err error) {
	err = With(host, func(ctx context.Context, client *clientv3.Client) error {
		list, err := client.MemberList(ctx)
		if err == nil {
			all = list.Members
		}
		return err
	})
	return all, err
}

// With connects to a host's etcd member at its local port, as etcdctl would.
func With(host *harness.Host, ask func(context.Context, *clientv3.Client) error) error {
	tls, err := TLS(host)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := etcdClient(ctx, host, tls)
	if err != nil {
		return err
	}
	defer client.Close()
	return ask(ctx, client)
}

// TLS returns the settings with which a client connects to the member of a host at its local port.
func TLS(host *harness.Host) (*tls.Config, error) { return clientTLS(host.Path(tlsDir)) }

func clientTLS(dir string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(dir, "server-ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}, nil
}

func etcdClient(ctx context.Context, host *harness.Host, config *tls.Config) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{"https://127.0.0.1:2379"}, TLS: config, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return host.DialContext(ctx, "tcp", address)
		})},
	})
}

// Leader returns the server whose member leads etcd.
func Leader(t *testing.T, servers ...*harness.Server) *harness.Server {
	t.Helper()
	var leads *harness.Server
	harness.Eventually(t, patience, "etcd to have a leader", func() error {
		for _, server := range servers {
			status, err := Status(server.Host)
			if err == nil && status.Leader == status.Header.MemberId {
				leads = server
				return nil
			}
		}
		return errors.New("none leads")
	})
	return leads
}

// Lead makes a server's member lead etcd.
func Lead(t *testing.T, to *harness.Server, servers ...*harness.Server) {
	t.Helper()
	harness.Eventually(t, patience, to.Host.Name+" to lead etcd", func() error {
		status, err := Status(to.Host)
		if err != nil || status.Leader == status.Header.MemberId {
			return err
		}
		return With(Leader(t, servers...).Host, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MoveLeader(ctx, status.Header.MemberId)
			return err
		})
	})
}

// Status asks a host's etcd member for its status.
func Status(host *harness.Host) (status *clientv3.StatusResponse, err error) {
	err = With(host, func(ctx context.Context, client *clientv3.Client) error {
		status, err = client.Status(ctx, client.Endpoints()[0])
		return err
	})
	return status, err
}

// The versions of etcd's data, of the last release and of this one.
const (
	OlderData = "3.6.0"
	Data      = "3.7.0"
)

// WaitData waits until the members of all hosts have the data of a version of etcd.
func WaitData(t *testing.T, version string, hosts ...*harness.Host) {
	t.Helper()
	for _, host := range hosts {
		harness.Eventually(t, patience, "etcd of "+host.Name+" to have data of version "+version, func() error {
			status, err := Status(host)
			if err == nil && status.StorageVersion != version {
				err = fmt.Errorf("they are of version %s", status.StorageVersion)
			}
			return err
		})
	}
}

// AllowOlder makes the data of all members readable for the etcd of the last release, as docs/upgrades.md
// says.
func AllowOlder(t *testing.T, hosts ...*harness.Host) {
	t.Helper()
	// Etcd has changed the data when it says so.
	WaitData(t, Data, hosts...)
	err := With(hosts[0], func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Downgrade(ctx, clientv3.DowngradeEnable, OlderData)
		return err
	})
	if err != nil {
		t.Fatalf("allow an older etcd: %v", err)
	}
	WaitData(t, OlderData, hosts...)
}
