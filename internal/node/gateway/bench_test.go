package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/requests"
	listening "github.com/kedge-dev/kedge/internal/node/gateway/sockets"
)

const (
	// benchConnections is how many connections the clients of BenchmarkGateway have, and benchStreams how
	// many requests each connection of HTTP/2 has at a time.
	benchConnections = 32
	benchStreams     = 4
	// benchHost is the host name that is asked for.
	benchHost = "web.example.com"
	// benchVariable has the settings of TestServeBenchmark.
	benchVariable = "KEDGE_BENCH_GATEWAY"
)

// benchSettings are what BenchmarkGateway tells the process of the gateway.
type benchSettings struct {
	Backend netip.AddrPort
	// Routes is how many other routes there are.
	Routes int
}

// usage is what the process of the gateway has used since its start. Writes are calls of the kernel.
type usage struct {
	Nanoseconds             int64
	Objects, Memory, Writes uint64
}

// BenchmarkGateway is whole requests through the gateway, with one route and with 1,000 more. The gateway is a
// process of its own, so that its processor time and its allocations are not those of clients and backend.
// With -cpuprofile=FILE or -memprofile=FILE, its profiles are in FILE.PROTOCOL.ROUTES.
func BenchmarkGateway(b *testing.B) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "web %s\n", r.RemoteAddr)
	}))
	defer backend.Close()
	for _, protocol := range []string{"HTTP1", "HTTP1-TLS", "HTTP2-TLS"} {
		for _, routes := range []int{0, 1000} {
			b.Run(fmt.Sprintf("%s/%d", protocol, routes), func(b *testing.B) {
				settings := benchSettings{netip.MustParseAddrPort(backend.Listener.Addr().String()), routes}
				process := startGateway(b, settings, fmt.Sprintf(".%s.%d", protocol, routes))
				benchLoad(b, process, protocol, 2000)
				before := process.usage(b)
				b.ResetTimer()
				benchLoad(b, process, protocol, b.N)
				b.StopTimer()
				after := process.usage(b)
				b.ReportMetric(float64(after.Nanoseconds-before.Nanoseconds)/float64(b.N), "cpu-ns/op")
				b.ReportMetric(float64(after.Objects-before.Objects)/float64(b.N), "allocs/op")
				b.ReportMetric(float64(after.Memory-before.Memory)/float64(b.N), "B/op")
				b.ReportMetric(float64(after.Writes-before.Writes)/float64(b.N), "writes/op")
			})
		}
	}
}

// gatewayProcess is a process that runs TestServeBenchmark.
type gatewayProcess struct {
	stdin         io.Writer
	answers       *json.Decoder
	plain, secure uint16
}

// startGateway runs TestServeBenchmark in a process of its own until the benchmark ends.
func startGateway(b *testing.B, settings benchSettings, name string) *gatewayProcess {
	b.Helper()
	arguments := []string{"-test.run=^TestServeBenchmark$"}
	for _, kind := range []string{"test.cpuprofile", "test.memprofile"} {
		if profile := flag.Lookup(kind).Value.String(); profile != "" {
			arguments = append(arguments, "-"+kind+"="+profile+name)
		}
	}
	command := exec.Command(os.Args[0], arguments...)
	text, err := json.Marshal(settings)
	if err != nil {
		b.Fatal(err)
	}
	command.Env = append(os.Environ(), benchVariable+"="+string(text))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := command.Wait(); err != nil {
			b.Errorf("the gateway has failed: %v", err)
		}
	})
	p := &gatewayProcess{stdin: stdin, answers: json.NewDecoder(stdout)}
	for _, port := range []*uint16{&p.plain, &p.secure} {
		if err := p.answers.Decode(port); err != nil {
			b.Fatalf("read ports of the gateway: %v", err)
		}
	}
	return p
}

// usage asks the process what it has used.
func (p *gatewayProcess) usage(b *testing.B) (u usage) {
	b.Helper()
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		b.Fatal(err)
	}
	if err := p.answers.Decode(&u); err != nil {
		b.Fatalf("read what the gateway has used: %v", err)
	}
	return u
}

// TestServeBenchmark is the gateway of BenchmarkGateway. It is skipped in every other process.
func TestServeBenchmark(t *testing.T) {
	text := os.Getenv(benchVariable)
	if text == "" {
		t.Skip("it is the gateway of a benchmark")
	}
	var settings benchSettings
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		t.Fatal(err)
	}
	q := requests.New(requests.Config{})
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	s := listening.New(listening.Config{Serve: q.Serve, Log: logrus.NewEntry(quiet), Patience: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer q.Close()
	defer running.Wait()
	defer cancel()
	state := benchState(t, settings)
	q.Set(state)
	s.Set(state)
	if open := s.Listening(); len(open) != len(state.Sockets) {
		t.Fatalf("only these are open: %v", open)
	}
	answers := json.NewEncoder(os.Stdout)
	for _, name := range []string{"plain", "secure"} {
		if err := answers.Encode(state.Sockets[name].Port); err != nil {
			t.Fatal(err)
		}
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := answers.Encode(readUsage(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func readUsage(t *testing.T) (u usage) {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	u.Nanoseconds = used.Utime.Nano() + used.Stime.Nano()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	u.Objects, u.Memory = memory.Mallocs, memory.TotalAlloc
	counts, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	_, writes, _ := strings.Cut(string(counts), "syscw: ")
	if _, err := fmt.Sscan(writes, &u.Writes); err != nil {
		t.Fatalf("read the number of writes: %v", err)
	}
	return u
}

// benchState has a route for benchHost, and others with a host name each.
func benchState(t *testing.T, settings benchSettings) *routing.State {
	t.Helper()
	state := &routing.State{
		Sockets: map[string]*routing.Socket{
			"plain":  {Transport: routing.TCP, Port: freePort(t), PublicPort: 80, Listeners: []routing.Listener{{Name: "plain", Protocol: routing.HTTP}}},
			"secure": {Transport: routing.TCP, Port: freePort(t), PublicPort: 443, Listeners: []routing.Listener{{Name: "secure", Protocol: routing.HTTPS, Certificates: []string{"c"}}}},
		},
		Routes:       map[string]*routing.Route{},
		Backends:     map[string]*routing.Backend{"b": {Name: "b", Endpoints: []netip.AddrPort{settings.Backend}}},
		Certificates: map[string]*routing.Certificate{"c": selfSigned(t, benchHost)},
	}
	split := routing.Split{Targets: []routing.Target{{Backend: "b", Weight: 1}}}
	add := func(name, host string, matches ...routing.Match) {
		state.Routes[name] = &routing.Route{Name: name, Hostnames: []string{host}, Rules: []routing.Rule{{Matches: matches, Split: split}}}
		for _, socket := range state.Sockets {
			socket.Listeners[0].Routes = append(socket.Listeners[0].Routes, name)
		}
	}
	add("asked", benchHost)
	for i := range settings.Routes {
		name := fmt.Sprintf("web-%d", i)
		add(name, name+".example.com", routing.Match{PathType: routing.PathPrefix, Path: "/a"}, routing.Match{PathType: routing.Exact, Path: "/b"})
	}
	return state
}

// benchLoad has clients send so many requests.
func benchLoad(b *testing.B, process *gatewayProcess, protocol string, requests int) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(requests))
	var working sync.WaitGroup
	for range benchConnections {
		working.Go(func() {
			var err error
			switch protocol {
			case "HTTP1":
				err = benchHTTP1(benchDial(process.plain, ""), &left)
			case "HTTP1-TLS":
				err = benchHTTP1(benchDial(process.secure, "http/1.1"), &left)
			default:
				err = benchHTTP2(benchDial(process.secure, "h2"), &left)
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	working.Wait()
}

// benchDial returns a function that connects, with TLS if there is a protocol.
func benchDial(port uint16, protocol string) func() (net.Conn, error) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	return func() (net.Conn, error) {
		if protocol == "" {
			return net.Dial("tcp", address)
		}
		return tls.Dial("tcp", address, &tls.Config{ServerName: benchHost, InsecureSkipVerify: true, NextProtos: []string{protocol}})
	}
}

// benchHTTP1 sends one request after the other while there are some left. It reads as little of the answers
// as it can, because it shares the processor with the gateway.
func benchHTTP1(dial func() (net.Conn, error), left *atomic.Int64) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	request := []byte("GET / HTTP/1.1\r\nHost: " + benchHost + "\r\nUser-Agent: bench\r\n\r\n")
	answers := bufio.NewReader(c)
	for left.Add(-1) >= 0 {
		if _, err := c.Write(request); err != nil {
			return err
		}
		length := 0
		for first := true; ; first = false {
			line, err := answers.ReadSlice('\n')
			if err != nil {
				return err
			}
			text := strings.TrimSpace(string(line))
			if first && text != "HTTP/1.1 200 OK" {
				return fmt.Errorf("the answer is %s", text)
			}
			if text == "" {
				break
			}
			if value, is := strings.CutPrefix(text, "Content-Length: "); is {
				if length, err = strconv.Atoi(value); err != nil {
					return err
				}
			}
		}
		if _, err := answers.Discard(length); err != nil || length == 0 {
			return fmt.Errorf("the answer has a body of %d bytes: %w", length, err)
		}
	}
	return nil
}

// benchHTTP2 has some requests at a time while there are some left.
func benchHTTP2(dial func() (net.Conn, error), left *atomic.Int64) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	out, in := bufio.NewWriter(c), bufio.NewReader(c)
	if _, err := out.WriteString(http2.ClientPreface); err != nil {
		return err
	}
	const window = 1 << 30
	frames := http2.NewFramer(out, in)
	frames.SetReuseFrames()
	if err := frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		return err
	}
	if err := frames.WriteWindowUpdate(0, window); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	next, open := uint32(1), 0
	ask := func() error {
		if left.Add(-1) < 0 {
			return nil
		}
		block.Reset()
		for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", benchHost}, {":path", "/"}, {"user-agent", "bench"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // the buffer does not fail
		}
		open++
		id := next
		next += 2
		return frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	for range benchStreams {
		if err := ask(); err != nil {
			return err
		}
	}
	for open > 0 {
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		frame, err := frames.ReadFrame()
		if err != nil {
			return err
		}
		if settings, is := frame.(*http2.SettingsFrame); is && !settings.IsAck() {
			if err := frames.WriteSettingsAck(); err != nil {
				return err
			}
		}
		if _, is := frame.(*http2.RSTStreamFrame); is {
			return fmt.Errorf("the gateway has refused a request: %v", frame)
		}
		if data, is := frame.(*http2.DataFrame); is && data.StreamEnded() {
			open--
			if err := ask(); err != nil {
				return err
			}
		}
	}
	return nil
}
