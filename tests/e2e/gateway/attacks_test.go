package gateway

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// TestAttacks sends requests that no honest client sends.
func TestAttacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.web("web")
	w.Apply(fmt.Sprintf(oneIngress, "web", "kedge"))
	address := w.addresses()[0] + ":80"
	good := question{address: address, url: "http://web.example.com/"}
	w.answers(good, 200)

	const host = "Host: web.example.com\r\n"
	for _, test := range []struct{ what, request, want string }{
		{"two lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", " 400 "},
		{"a bad length", "POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\nabc", " 400 "},
		{"an unknown coding", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", " 501 "},
		{"a space before the colon", "GET / HTTP/1.1\r\n" + host + "Transfer-Encoding : chunked\r\n\r\n", " 400 "},
		{"a folded header", "GET / HTTP/1.1\r\n" + host + "X-A: a\r\n b\r\n\r\n", " "},
		{"two hosts", "GET / HTTP/1.1\r\n" + host + "Host: other.example.com\r\n\r\n", " 400 "},
		{"no host", "GET / HTTP/1.1\r\n\r\n", " 400 "},
		{"a null byte", "GET / HTTP/1.1\r\n" + host + "X-A: a\x00b\r\n\r\n", " 400 "},
		{"a header of a megabyte", "GET / HTTP/1.1\r\n" + host + "X-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", " 431 "},
		{"a bad chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", " "},
		{"no HTTP", "\x16\x03\x01\x00\x00", ""},
	} {
		got, err := w.raw(address, []byte(test.request))
		line, _, _ := strings.Cut(got, "\r\n")
		t.Logf("%s: %q, %v", test.what, line, err)
		if !strings.Contains(line, test.want) || strings.Contains(line, " 200 ") && test.want != " " {
			t.Errorf("%s is answered with %q, want%s", test.what, line, test.want)
		}
	}
	// A length beside chunks, and the beginning of another request behind them. It must not become the
	// beginning of the next client's request on the connection to the pod.
	for range 20 {
		if got, err := w.raw(address, []byte("POST /a HTTP/1.1\r\n"+host+"Content-Length: 40\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nX-Hidden: ")); err != nil {
			t.Errorf("a length beside chunks is answered with %q, %v", got, err)
		}
		if got, err := w.ask(good); err != nil || !strings.Contains(got.body, "path=/\n") {
			t.Errorf("after it, an honest client is answered with %q, %v", got.body, err)
		}
	}

	t.Log("a thousand slow clients")
	var slow []net.Conn
	defer func() {
		for _, conn := range slow {
			conn.Close()
		}
	}()
	before := w.memory()
	for range 1000 {
		conn, err := w.client.DialContext(w.Context(), "tcp", address)
		if err != nil {
			break // refused: there is a limit
		}
		slow = append(slow, conn)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n"+host+"X-A: ")
	}
	w.answers(good, 200)
	if after := w.memory(); after > before+64<<20 {
		t.Errorf("with %d slow clients kedge has %d MiB more", len(slow), (after-before)>>20)
	}
	w.Eventually("slow clients to be sent away", func() error {
		for i, conn := range slow {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := conn.Read(make([]byte, 512)); err != nil {
				if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
					return fmt.Errorf("client %d is still connected", i)
				}
			}
		}
		return nil
	})

	t.Log("backends that are not for tenants")
	// The API server itself refuses endpoints at addresses of loopback and of the link.
	w.Apply(`
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: localhost, ports: [{port: 10249}]}
`)
	w.Apply(strings.ReplaceAll(fmt.Sprintf(oneIngress, "outside", "kedge"), "name: web, port: {number: 80}", "name: outside, port: {number: 10249}"))
	w.answers(question{address: address, url: "http://outside.example.com/"}, 503)
	w.Told("default", "outside", "ExternalName")
}

// memory returns the anonymous memory of kedge on the first node, in bytes.
func (w *world) memory() int64 {
	w.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Server.Process().Pid))
	if err != nil {
		w.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		w.Fatalf("read memory of kedge: %v", err)
	}
	return kib << 10
}
