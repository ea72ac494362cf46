package requests

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// plainH2 returns a client of HTTP/2 without TLS.
func plainH2(t *testing.T) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// TestGRPC sees that calls pass in both directions while they go on, by HTTP/2 on both sides,
// with trailers.
func TestGRPC(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/", "b"), func(r *routing.Rule) { r.GRPC = true }),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Header.Get("Te") != "trailers" {
			t.Errorf("got %s, TE %q", r.Proto, r.Header.Get("Te"))
		}
		rw.Header().Set("Content-Type", "application/grpc")
		control := http.NewResponseController(rw)
		_ = control.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			_, _ = fmt.Fprintf(rw, "%s back\n", lines.Text())
			_ = control.Flush()
		}
		rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		rw.Header().Set(http.TrailerPrefix+"Of-Client", r.Trailer.Get("Of-Client"))
	})
	transport := plainH2(t)
	reader, writer := io.Pipe()
	request, _ := http.NewRequest(http.MethodPost, w.server.URL+"/s/m", reader)
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	request.Trailer = http.Header{"Of-Client": nil}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(writer, word+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); got != word+" back\n" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	request.Trailer.Set("Of-Client", "sent")
	writer.Close()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Fatalf("got %q, %v", rest, err)
	}
	if response.Trailer.Get("Grpc-Status") != "0" || response.Trailer.Get("Of-Client") != "sent" {
		t.Errorf("got trailers %v", response.Trailer)
	}
}

// TestFailGRPC sees that clients of gRPC get its codes.
func TestFailGRPC(t *testing.T) {
	grpc := func(r *routing.Rule) { r.GRPC = true }
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/invalid"), func(r *routing.Rule) {
			grpc(r)
			r.Targets = []routing.Target{{Fault: 500, Weight: 1}}
		}),
		with(to("/dead", "dead"), grpc),
		with(to("/empty", "empty"), grpc),
	}})
	w.state.Backends["empty"] = &routing.Backend{Name: "empty"}
	w.state.Backends["dead"] = &routing.Backend{Name: "dead"}
	w.state.Backends["dead"].Endpoints = append(w.state.Backends["dead"].Endpoints, deadAddress(t))
	w.set()
	transport := plainH2(t)
	for path, want := range map[string]string{"/invalid": "14", "/dead": "14", "/empty": "14", "/unknown": "12", "/a%00": "13"} {
		request, _ := http.NewRequest(http.MethodPost, w.server.URL, strings.NewReader("message"))
		request.URL.Opaque = path
		request.Header.Set("Content-Type", "application/grpc+proto")
		got := w.doBy(transport, request)
		if got.StatusCode != 200 || got.Header.Get("Grpc-Status") != want || got.Header.Get("Content-Type") != "application/grpc" || got.text != "" {
			t.Errorf("%s: got %d, %v, %q, want %s", path, got.StatusCode, got.Header, got.text, want)
		}
	}
}

func (w *world) doBy(transport *http.Transport, request *http.Request) answer {
	w.Helper()
	response, err := transport.RoundTrip(request)
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.Fatal(err)
	}
	return answer{Response: response, text: string(text)}
}

// TestUpgrade passes a protocol like WebSocket on, with what the client sends before it may.
func TestUpgrade(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/", "b"), func(r *routing.Rule) { r.MaxBody = 1 }),
		to("/other", "other"),
		to("/h2c", "plain"),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			t.Errorf("got %v", r.Header)
		}
		conn, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\nSec-Websocket-Accept: x\r\n\r\nhello\n")
		for {
			line, err := buffered.ReadString('\n')
			if err != nil {
				_, _ = io.WriteString(conn, "end\n")
				return
			}
			_, _ = io.WriteString(conn, line)
		}
	})
	w.backend("other", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Connection", "Upgrade")
		rw.Header().Set("Upgrade", "another")
		rw.WriteHeader(http.StatusSwitchingProtocols)
	})
	w.backend("plain", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, r.Header.Get("Upgrade")+r.Header.Get("Connection")+r.Header.Get("Http2-Settings"))
	})
	connect := func(path, upgrade string) (net.Conn, *bufio.Reader, *http.Response) {
		conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade, HTTP2-Settings\r\nUpgrade: "+upgrade+"\r\nHTTP2-Settings: x\r\n\r\n")
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, reader, response
	}
	conn, reader, response := connect("/ws", "websocket")
	if response.StatusCode != 101 || !strings.EqualFold(response.Header.Get("Upgrade"), "websocket") || response.Header.Get("Sec-Websocket-Accept") != "x" {
		t.Fatalf("got %d, %v", response.StatusCode, response.Header)
	}
	if got, err := reader.ReadString('\n'); got != "hello\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		_, _ = io.WriteString(conn, line)
		if got, err := reader.ReadString('\n'); got != line {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(reader); string(got) != "end\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, _, response := connect("/other", "websocket"); response.StatusCode != 502 {
		t.Errorf("a switch to what nobody asked for: got %d", response.StatusCode)
	}
	_, _, response = connect("/h2c", "h2c")
	if response.StatusCode != 200 || response.ContentLength != 0 {
		t.Errorf("a switch to HTTP/2: got %d, %d bytes", response.StatusCode, response.ContentLength)
	}

	// Closing the gateway ends connections that have switched.
	_, reader, _ = connect("/ws", "websocket")
	if got, err := reader.ReadString('\n'); got != "hello\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	w.requests.Close()
	if _, err := io.Copy(io.Discard, reader); err != nil {
		t.Logf("The connection ends with %v.", err) // a reset is an end, too
	}
}

// TestStreams sees that events reach the client when they come.
func TestStreams(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	next := make(chan string)
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "length" {
			rw.Header().Set("Content-Length", "8")
		}
		control := http.NewResponseController(rw)
		_ = control.Flush()
		for event := range next {
			_, _ = io.WriteString(rw, event)
			_ = control.Flush()
		}
	})
	for _, query := range []string{"", "length"} {
		next = make(chan string)
		request, _ := http.NewRequest(http.MethodGet, w.server.URL+"?"+query, nil)
		transport := &http.Transport{}
		type result struct {
			*http.Response
			error
		}
		results := make(chan result, 1)
		go func() {
			response, err := transport.RoundTrip(request)
			results <- result{response, err}
		}()
		if query == "length" {
			next <- "one\n" // the header may wait for the first byte
		}
		got := receive(t, results)
		if got.error != nil {
			t.Fatal(got.error)
		}
		if query == "" {
			next <- "one\n"
		}
		reader := bufio.NewReader(got.Body)
		if line, err := reader.ReadString('\n'); line != "one\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		next <- "two\n"
		if line, err := reader.ReadString('\n'); line != "two\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		close(next)
		if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
			t.Errorf("got %q, %v", rest, err)
		}
		got.Body.Close()
		transport.CloseIdleConnections()
	}
}

// TestInformational sees that answers before the answer (1xx) reach the client.
func TestInformational(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Link", "</a.css>; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("Link")
		rw.WriteHeader(http.StatusAccepted)
	})
	var hints []string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, header.Get("Link")))
		return nil
	}}
	request, _ := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodGet, w.server.URL, nil)
	got := w.do(request)
	if got.StatusCode != 202 || got.Header.Get("Link") != "" || len(hints) != 1 || hints[0] != "103</a.css>; rel=preload" {
		t.Errorf("got %d, %v, hints %q", got.StatusCode, got.Header, hints)
	}
}

// TestHops sees that headers of one connection stay on it.
func TestHops(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Connection", "X-Private")
		rw.Header().Set("X-Private", "secret")
		rw.Header().Set("Keep-Alive", "timeout=5")
		rw.Header().Set("Alt-Svc", `h3=":1"`)
		rw.Header().Set("X-Public", "seen")
		echoing("b")(rw, r)
	})
	got := w.ask("GET", "/", "Connection: X-Mine, X-Forwarded-For", "X-Mine: secret", "Keep-Alive: 1", "Te: gzip", "Proxy-Authorization: secret", "X-Other: seen")
	for _, name := range []string{"Connection", "X-Mine", "Keep-Alive", "Te", "Proxy-Authorization", "User-Agent"} {
		if values := got.echo.Header[name]; values != nil && name != "User-Agent" {
			t.Errorf("the backend gets %s %q", name, values)
		}
	}
	for _, name := range []string{"X-Private", "Keep-Alive", "Alt-Svc"} {
		if values := got.Header[name]; values != nil {
			t.Errorf("the client gets %s %q", name, values)
		}
	}
	if got.echo.Header.Get("X-Other") != "seen" || got.Header.Get("X-Public") != "seen" || got.echo.Header.Get("X-Forwarded-For") == "" {
		t.Errorf("got %v and %v", got.echo.Header, got.Header)
	}
}

// TestPlainH2 sees that a backend gets the protocol that it wants.
func TestPlainH2(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", nil)
	for _, test := range []struct {
		protocol routing.BackendProtocol
		want     string
	}{{routing.PlainHTTP, "HTTP/1.1"}, {routing.PlainH2, "HTTP/2.0"}} {
		w.state.Backends = map[string]*routing.Backend{"b": {Name: "b", Protocol: test.protocol, Endpoints: w.state.Backends["b"].Endpoints}}
		w.set()
		got := w.send("POST", "/a%2Fb|c?x=%zz", strings.NewReader("the body"))
		if got.echo.Proto != test.want || got.echo.Body != "the body" || got.echo.URI != "/a%2Fb|c?x=%zz" {
			t.Errorf("got %+v, want %s", got.echo, test.want)
		}
	}
	// package url has no way to send this one: the slashes become one.
	var got string
	w.backend("b", func(_ http.ResponseWriter, r *http.Request) { got = r.RequestURI })
	if status := w.raw("GET //a|b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); status != 200 || got != "/a|b" {
		t.Errorf("got %d, %q", status, got)
	}
}

// TestFullDuplex sees that HTTP/1.1 passes a body on while the answer comes back.
func TestFullDuplex(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		_ = control.EnableFullDuplex()
		_ = control.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			_, _ = fmt.Fprintf(rw, "%s back\n", lines.Text())
			_ = control.Flush()
		}
	})
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(response.Body)
	for _, word := range []string{"one", "two"} {
		_, _ = io.WriteString(conn, "4\r\n"+word+"\n\r\n")
		if got, err := lines.ReadString('\n'); got != word+" back\n" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	_, _ = io.WriteString(conn, "0\r\n\r\n")
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Fatalf("got %q, %v", rest, err)
	}
	// Another reading of the request could see another one behind it.
	if !response.Close {
		t.Error("the connection goes on after a request in chunks")
	}
}
