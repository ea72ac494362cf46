// Package runtimesocket connects to a container runtime by the CRI, kedge's own or the user's. Packages that ask it now and then call
// it: each has a connection for as long as it asks.
package runtimesocket

import (
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Connect returns a client of the runtime at a socket, and its connection. It does not wait for the runtime.
func Connect(socket string) (cri.RuntimeServiceClient, io.Closer, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the container runtime: %w", err)
	}
	return cri.NewRuntimeServiceClient(conn), conn, nil
}
