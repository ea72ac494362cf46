package keep

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// gateway is a real server of S3, the Versity S3 Gateway, which keeps its files in a folder. Clients reach it through a proxy that can have faults.
type gateway struct {
	t      *testing.T
	host   *harness.Host
	folder string
	// process is nil while the gateway does not run.
	process *harness.Cmd

	mu    sync.Mutex
	fault func(http.ResponseWriter, *http.Request, http.Handler)
}

// behind is where the gateway listens.
const gatewayAddress = "127.0.0.1:9444"

// newGateway starts a gateway on a host. The bucket is in the folder, which may be there. Nothing in it can be removed for a day: it has object lock.
func newGateway(t *testing.T, host *harness.Host, folder string) *gateway {
	t.Helper()
	g := &gateway{t: t, host: host, folder: folder}
	g.start("secret")
	if _, err := os.Stat(filepath.Join(folder, "objects", "backups")); err != nil {
		g.makeBucket()
	}
	certificate, key := cluster.Certificate(t, "localhost")
	host.WriteFile("/etc/kedge/s3.crt", string(certificate))
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: gatewayAddress})
	behind.Transport = g.transport()
	behind.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // as if nobody listened
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		fault := g.fault
		g.mu.Unlock()
		if fault != nil {
			fault(w, r, behind)
			return
		}
		behind.ServeHTTP(w, r)
	})}
	listener := tls.NewListener(host.Listen("127.0.0.1:9443"), &tls.Config{Certificates: []tls.Certificate{pair}})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return g
}

// transport sends requests to the gateway.
func (g *gateway) transport() *http.Transport {
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return g.host.DialContext(ctx, network, address)
		},
	}
}

// makeBucket makes a bucket with object lock.
func (g *gateway) makeBucket() {
	g.t.Helper()
	client, err := minio.New(gatewayAddress, &minio.Options{
		Creds: credentials.NewStaticV4("user", "secret", ""), Transport: g.transport(), BucketLookup: minio.BucketLookupPath,
	})
	if err == nil {
		err = client.MakeBucket(g.t.Context(), "backups", minio.MakeBucketOptions{ObjectLocking: true})
	}
	mode, days, unit := minio.Compliance, uint(1), minio.Days
	if err == nil {
		err = client.SetObjectLockConfig(g.t.Context(), "backups", &mode, &days, &unit)
	}
	if err != nil {
		g.t.Fatalf("make a bucket: %v", err)
	}
}

// start starts the gateway with a secret key.
func (g *gateway) start(secret string) {
	g.t.Helper()
	objects, versions := filepath.Join(g.folder, "objects"), filepath.Join(g.folder, "versions")
	for _, folder := range []string{objects, versions} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			g.t.Fatal(err)
		}
	}
	g.process = g.host.Command(context.WithoutCancel(g.t.Context()), harness.Built(g.t, "versitygw"), "--quiet", "--access", "user", "--secret", secret,
		"--port", gatewayAddress, "posix", "--versioning-dir", versions, objects)
	var said strings.Builder
	g.process.Stdout, g.process.Stderr = &said, &said
	if err := g.process.Start(); err != nil {
		g.t.Fatalf("start the gateway: %v", err)
	}
	harness.Eventually(g.t, time.Minute, "the gateway", func() error {
		conn, err := g.host.DialContext(g.t.Context(), "tcp", gatewayAddress)
		if err != nil {
			return fmt.Errorf("%w: %s", err, said.String())
		}
		return conn.Close()
	})
}

// stop kills the gateway.
func (g *gateway) stop() {
	g.t.Helper()
	if err := g.process.Process.Kill(); err != nil {
		g.t.Fatal(err)
	}
	_ = g.process.Wait() // it was killed
}

// with sets the fault of the proxy, or none.
func (g *gateway) with(fault func(http.ResponseWriter, *http.Request, http.Handler)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = fault
}

// refuse answers with an error of S3.
func refuse(status int, code string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the test refuses it</Message></Error>", code)
	}
}

// silent does not answer.
func silent(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

// forgetful does what it is asked, and loses its answer.
func forgetful(_ http.ResponseWriter, r *http.Request, behind http.Handler) {
	behind.ServeHTTP(nowhere{http.Header{}}, r)
	panic(http.ErrAbortHandler)
}

type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header         { return n.header }
func (n nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n nowhere) WriteHeader(int)             {}

// halves hands on only half of what is to be written.
func halves(_ http.ResponseWriter, r *http.Request, behind http.Handler) {
	if r.Method == http.MethodPut {
		body := r.Body
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(body, r.ContentLength/2), failing{}), body}
	}
	behind.ServeHTTP(nowhere{http.Header{}}, r)
	panic(http.ErrAbortHandler)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection is cut") }

// TestBucketFaults has a real server of S3 fail in all ways while a client writes. The API goes on, kedge status says what is wrong, and nothing is missing
// afterwards. Then the box is lost.
func TestBucketFaults(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	network := harness.NewNetwork(t)
	host := network.NewHost(t, "server-1")
	folder := t.TempDir()
	g := newGateway(t, host, folder)
	host.WriteFile("/etc/kedge/config.yaml", settings+"disable-agent: true\ns3-timeout: 5s\n")
	server := host.StartServer(t)
	server.WaitAPI()
	key := makeKey(t, host)
	host.WriteFile("/opt/key", key)
	c := cluster.Of(t, server)
	restore := append(slices.Clone(restore), "--key", "/opt/key")
	w := &writer{t: t, pause: 50 * time.Millisecond}
	done := make(chan struct{})
	go func() {
		w.write(server.Client())
		close(done)
	}()
	for _, test := range []struct {
		name       string
		begin, end func()
		want       string
	}{
		{"500", func() { g.with(refuse(http.StatusInternalServerError, "InternalError")) }, nil, "the test refuses it"},
		{"expired credentials", func() { g.with(refuse(http.StatusForbidden, "ExpiredToken")) }, nil, "the test refuses it"},
		{"a wrong clock", func() { g.with(refuse(http.StatusForbidden, "RequestTimeTooSkewed")) }, nil, "set this host's clock"},
		{"a full bucket", func() { g.with(refuse(http.StatusInsufficientStorage, "InsufficientStorage")) }, nil, "the bucket is full"},
		{"no answer", func() { g.with(silent) }, nil, "check s3-endpoint"},
		{"lost answers", func() { g.with(forgetful) }, nil, "check s3-endpoint"},
		{"halves", func() { g.with(halves) }, nil, "check s3-endpoint"},
		{"nobody", g.stop, func() { g.start("secret") }, "check s3-endpoint"},
		{"another secret", func() { g.stop(); g.start("other") }, func() { g.stop(); g.start("secret") }, "s3-secret-key"},
	} {
		t.Logf("%s", test.name)
		test.begin()
		harness.Eventually(t, 2*time.Minute, "kedge status to say it", func() error {
			said, err := host.Kedge(t.Context(), "status").CombinedOutput()
			if err == nil || !strings.Contains(string(said), test.want) {
				return fmt.Errorf("%s: %v, want %q:\n%s", test.name, err, test.want, said)
			}
			return nil
		})
		marker := "after-" + strings.ReplaceAll(test.name, " ", "-")
		c.Kubectl("create", "configmap", marker) // the API goes on
		last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), marker, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		g.with(nil)
		if test.end != nil {
			test.end()
		}
		inBackup(c, host, last, restore)
	}
	died := time.Now()
	host.LoseDisk()
	server.Exited()
	<-done
	newGateway(t, host, folder)
	host.WriteFile("/opt/key", key)
	t.Log(run(t, host, restore...))
	server = host.StartServer(t)
	server.WaitAPI()
	w.found(server.Client(), died.Add(-mayLose()))
}
