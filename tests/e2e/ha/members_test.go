package ha

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

// voters waits until the voters, as a server sees them, are the members of these nodes.
func voters(t *testing.T, server *harness.Server, nodes ...string) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("etcd's members to be %v", nodes), func() error {
		members, err := members(server.Host)
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

// members asks a host's etcd member for all members.
func members(host *harness.Host) (all []*etcdserverpb.Member, err error) {
	err = withMember(host, func(ctx context.Context, client *clientv3.Client) error {
		list, err := client.MemberList(ctx)
		if err == nil {
			all = list.Members
		}
		return err
	})
	return all, err
}

// withMember connects to a host's etcd member at its local port, as etcdctl would.
func withMember(host *harness.Host, ask func(context.Context, *clientv3.Client) error) error {
	tls, err := clientTLS(host.Path(tlsDir))
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

// leader returns the server whose member leads etcd.
func leader(t *testing.T, servers ...*harness.Server) *harness.Server {
	t.Helper()
	var leads *harness.Server
	harness.Eventually(t, patience, "etcd to have a leader", func() error {
		for _, server := range servers {
			status, err := memberStatus(server.Host)
			if err == nil && status.Leader == status.Header.MemberId {
				leads = server
				return nil
			}
		}
		return errors.New("none leads")
	})
	return leads
}

// lead makes a server's member lead etcd.
func lead(t *testing.T, to *harness.Server, servers ...*harness.Server) {
	t.Helper()
	harness.Eventually(t, patience, to.Host.Name+" to lead etcd", func() error {
		status, err := memberStatus(to.Host)
		if err != nil || status.Leader == status.Header.MemberId {
			return err
		}
		return withMember(leader(t, servers...).Host, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MoveLeader(ctx, status.Header.MemberId)
			return err
		})
	})
}

// memberStatus asks a host's etcd member for its status.
func memberStatus(host *harness.Host) (status *clientv3.StatusResponse, err error) {
	err = withMember(host, func(ctx context.Context, client *clientv3.Client) error {
		status, err = client.Status(ctx, client.Endpoints()[0])
		return err
	})
	return status, err
}
