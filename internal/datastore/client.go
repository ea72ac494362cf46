package datastore

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// dialTimeout limits how long making one connection to a datastore may take.
const dialTimeout = 5 * time.Second

// NewClient returns an etcd client of the datastore at endpoint. A datastore in
// this process must be ready. It fails if the TLS files cannot be read.
func NewClient(endpoint Endpoint) (*clientv3.Client, error) {
	if endpoint.NewClient != nil {
		return endpoint.NewClient().Client, nil
	}
	tls, err := TLS{CAFile: endpoint.CAFile, CertFile: endpoint.CertFile, KeyFile: endpoint.KeyFile}.Config()
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{Endpoints: strings.Split(endpoint.URL, ","), TLS: tls, DialTimeout: dialTimeout, Logger: zap.NewNop()}
	if dial := endpoint.Dial; dial != nil {
		config.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dial(ctx, "tcp", address)
		})}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("make etcd client: %w", err)
	}
	return client, nil
}
