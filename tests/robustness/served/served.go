// Package served runs a datastore of kedge in a process of its own and serves etcd's API over TCP, so
// that the tests in tests/robustness can kill it, stop it, and cut it off. The datastore is the code
// that runs in a server, with the same settings. Only etcd's own API is in front of it here, in the
// place of an API server.
package served

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/sqldb"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

const (
	// SocketPort is for clients that come to the datastore by its unix socket, as etcdctl does.
	SocketPort = "2379"
	// ProcessPort is for clients whose watches are those of the API server: they use the client in
	// the process of the datastore.
	ProcessPort = "2380"
)

// Ready is what Main prints when the ports answer.
const Ready = "the ports answer"

// Main serves a datastore until the process gets SIGTERM. It prints what it cannot do, and returns
// the exit status.
//
//	-folder FOLDER -socket FILE [-endpoint URL -cafile FILE -certfile FILE -keyfile FILE] [-fault NAME]
func Main(args []string) int {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	folder := flags.String("folder", "", "where the database of SQLite is")
	socket := flags.String("socket", "", "the unix socket of the datastore")
	endpoint := flags.String("endpoint", "", "the database; if empty, the datastore is SQLite")
	var files datastore.TLS
	flags.StringVar(&files.CAFile, "cafile", "", "the authority of the database")
	flags.StringVar(&files.CertFile, "certfile", "", "the certificate for the database")
	flags.StringVar(&files.KeyFile, "keyfile", "", "the key for the database")
	fault := flags.String("fault", "", "a fault of Faults, to make on purpose")
	_ = flags.Parse(args) // it ends the process
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var d datastore.Datastore = sqlite.New(sqlite.Config{Dir: *folder, Socket: *socket})
	if *endpoint != "" {
		var err error
		if d, err = sqldb.New(sqldb.Config{Endpoint: *endpoint, TLS: files, Socket: *socket}); err != nil {
			log.Print(err)
			return 1
		}
	}
	if err := serve(ctx, d, *socket, *fault); err != nil {
		log.Print(err)
		return 1
	}
	return 0
}

// serve runs d, and its ports while it is ready.
func serve(ctx context.Context, d datastore.Datastore, socket, fault string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ready := make(chan struct{})
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error {
		defer stop()
		return d.Run(ctx, func() { close(ready) })
	})
	running.Go(func() error {
		select {
		case <-ready:
			return servePorts(ctx, d, socket, fault)
		case <-ctx.Done():
			return nil
		}
	})
	return running.Wait()
}

func servePorts(ctx context.Context, d datastore.Datastore, socket, fault string) error {
	relayed, err := net.Listen("tcp", ":"+SocketPort)
	if err != nil {
		return err
	}
	defer relayed.Close()
	listener, err := net.Listen("tcp", ":"+ProcessPort)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	server := grpc.NewServer()
	context.AfterFunc(ctx, func() {
		relayed.Close()
		server.Stop()
	})
	front := &front{kv: pb.NewKVClient(conn), client: d.Endpoint().NewClient, saboteur: newSaboteur(fault)}
	pb.RegisterKVServer(server, front)
	pb.RegisterWatchServer(server, front)
	go Relay(relayed, func() (net.Conn, error) { return net.Dial("unix", socket) })
	fmt.Println(Ready)
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Relay connects each connection of a listener with one that dial makes, until the listener is closed.
func Relay(listener net.Listener, dial func() (net.Conn, error)) {
	for {
		outer, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer outer.Close()
			inner, err := dial()
			if err != nil {
				return
			}
			defer inner.Close()
			go func() {
				defer inner.Close()
				_, _ = io.Copy(inner, outer) // a connection may end at any time
			}()
			_, _ = io.Copy(outer, inner)
		}()
	}
}

// Argument is the first argument of a test binary that is to call Main.
const Argument = "serve-datastore"

// IsChild tells whether this process is to call Main.
func IsChild() bool { return len(os.Args) > 1 && os.Args[1] == Argument }
