package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// strict is a backend that takes only requests that nobody can read in two ways. Backends of users read the others each in its
// own way, so the gateway must never send one.
type strict struct {
	mu sync.Mutex
	// paths are those of the requests that came, and faults what was ambiguous.
	paths, faults []string
}

func newStrict(t testing.TB) (*strict, netip.AddrPort) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &strict{}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serve(c) })
		}
	})
	return s, netip.MustParseAddrPort(listener.Addr().String())
}

// serve answers the requests of a connection with their path.
func (s *strict) serve(c net.Conn) {
	defer c.Close()
	for from := bufio.NewReader(c); ; {
		path, err := readStrict(from)
		s.mu.Lock()
		if path != "" {
			s.paths = append(s.paths, path)
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			s.faults = append(s.faults, err.Error())
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path), path); err != nil {
			return
		}
	}
}

var sizeLine = regexp.MustCompile(`^[0-9a-fA-F]{1,8}$`)

// readStrict reads a request. It returns io.EOF at the end of a connection between requests.
func readStrict(from *bufio.Reader) (path string, err error) {
	line, err := readLine(from)
	if err != nil {
		return "", err
	}
	first := strings.Split(line, " ")
	if len(first) != 3 || !httpguts.ValidHeaderFieldName(first[0]) || !strings.HasPrefix(first[1], "/") || !httpguts.ValidHeaderFieldValue(first[1]) || first[2] != "HTTP/1.1" {
		return "", fmt.Errorf("the request line %q", line)
	}
	fields := map[string][]string{}
	for {
		line, err := readLine(from)
		if err != nil {
			return first[1], fmt.Errorf("the end of a header: %v", err)
		}
		if line == "" {
			break
		}
		name, value, is := strings.Cut(line, ": ")
		if !is || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) || strings.TrimSpace(value) != value {
			return first[1], fmt.Errorf("the field %q", line)
		}
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-") // as many servers do
		fields[name] = append(fields[name], value)
	}
	lengths, codings := fields["content-length"], fields["transfer-encoding"]
	switch {
	case len(fields["host"]) != 1 || len(lengths) > 1 || len(codings) > 1 || len(lengths)+len(codings) > 1:
		return first[1], fmt.Errorf("the hosts %q, lengths %q and codings %q", fields["host"], lengths, codings)
	case len(codings) == 1 && codings[0] != "chunked":
		return first[1], fmt.Errorf("the coding %q", codings[0])
	case len(codings) == 1:
		return first[1], readChunks(from)
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 32)
		if err != nil || strconv.FormatUint(n, 10) != lengths[0] {
			return first[1], fmt.Errorf("the length %q", lengths[0])
		}
		if _, err := io.CopyN(io.Discard, from, int64(n)); err != nil {
			return first[1], net.ErrClosed // a client that sent less than it said
		}
	}
	return first[1], nil
}

// readLine reads a line that ends with CR and LF.
func readLine(from *bufio.Reader) (string, error) {
	line, err := from.ReadString('\n')
	if err != nil && line == "" {
		return "", io.EOF
	}
	text, ok := strings.CutSuffix(line, "\r\n")
	if !ok || strings.ContainsAny(text, "\r\n\x00") {
		return "", fmt.Errorf("the line %q", line)
	}
	return text, nil
}

func readChunks(from *bufio.Reader) error {
	for {
		line, err := readLine(from)
		if err != nil {
			return net.ErrClosed // a client that ended in the middle
		}
		if !sizeLine.MatchString(line) {
			return fmt.Errorf("the size %q", line)
		}
		size, _ := strconv.ParseInt(line, 16, 64)
		if size == 0 {
			if line, err := readLine(from); err != nil || line != "" {
				return fmt.Errorf("the trailer %q: %w", line, err)
			}
			return nil
		}
		if _, err := io.CopyN(io.Discard, from, size); err != nil {
			return net.ErrClosed
		}
		if line, err := readLine(from); err != nil || line != "" {
			return fmt.Errorf("the end of a chunk %q: %w", line, err)
		}
	}
}

const (
	desyncHost = "desync.example"
	// hidden is a request that the gateway must take for a part of another one, or refuse.
	hidden = "GET /hidden HTTP/1.1\r\nHost: " + desyncHost + "\r\n\r\n"
)

// corpus returns requests of HTTP/1.1 that servers have read in different ways. Each has a body in which a request is hidden for those
// who read its length in another way.
func corpus() (all []string) {
	ask := func(fields, body string) {
		all = append(all, "POST /front HTTP/1.1\r\nHost: "+desyncHost+"\r\n"+fields+"\r\n"+body)
	}
	length := fmt.Sprintf("Content-Length: %d\r\n", len("0\r\n\r\n"+hidden))
	for _, coding := range []string{
		"Transfer-Encoding: chunked", "Transfer-Encoding:chunked", "Transfer-Encoding:  chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked ",
		"Transfer-Encoding: Chunked", "Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked", "Transfer-Encoding: xchunked",
		"Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked",
		"Transfer-Encoding: chunked;q=1", `Transfer-Encoding: "chunked"`, "Transfer-Encoding: 'chunked'", "Transfer-Encoding: chunked\x0b", "Transfer-Encoding: \x0bchunked",
		"Transfer-Encoding: chunk", "Transfer-Encoding: chunked,", "Transfer-Encoding: ,chunked", "Transfer-Encoding:", "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding:\r\n chunked",
		"X: a\r\n Transfer-Encoding: chunked", "X: a\nTransfer-Encoding: chunked", "X: a\rTransfer-Encoding: chunked", "X: a\x00\r\nTransfer-Encoding: chunked",
		"Transfer_Encoding: chunked", "Transfer-Encoding\x00: chunked", "Transfer\x00-Encoding: chunked", "transfer-encoding: chunked", "TRANSFER-ENCODING: CHUNKED",
		"Transfer-Encoding: chunked\xa0", "Transfer-Encoding: \xa0chunked", "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked", "TE: trailers\r\nTransfer-Encoding: chunked",
	} {
		ask(length+coding+"\r\n", "0\r\n\r\n"+hidden)
		ask(coding+"\r\n"+length, "0\r\n\r\n"+hidden)
		if !strings.Contains(coding, "_") && !strings.HasPrefix(coding, "X: a\r\n ") { // these have no coding, and another request follows
			ask("Content-Length: 3\r\n"+coding+"\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden))
		}
	}
	for _, length := range []string{
		"Content-Length: 0\r\nContent-Length: %d", "Content-Length: %d\r\nContent-Length: 0", "Content-Length: 0, %d", "Content-Length: %d, %[1]d", "Content-Length: +%d",
		"Content-Length: -%d", "Content-Length: 0x%x", "Content-Length: 0%d", "Content-Length: %d ", "Content-Length: %d\x0b", "Content-Length : %d", "Content-Length: %d.0",
		"Content-Length: %de0", "Content-Length:\r\n %d", "Content_Length: 0\r\nContent-Length: %d", "Content-Length: 1844674407370955161%d", "Content-Length: ", "Connection: Content-Length\r\nContent-Length: %d",
		"Connection: close, Content-Length\r\nContent-Length: %d", "Expect: 100-continue\r\nContent-Length: %d", "Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: %d",
		"Expect: x\r\nContent-Length: %d", "Content-Length: %d\r\nContent-Length: %[1]d",
	} {
		if strings.Contains(length, "%") {
			length = fmt.Sprintf(length, len(hidden))
		}
		ask(length+"\r\n", hidden)
	}
	for _, size := range []string{
		"%x;a=b\r\n", "%x;\n", "%x;a=\"\r\n\"\r\n", "%x \r\n", " %x\r\n", "0x%x\r\n", "+%x\r\n", "-%x\r\n", "%x\n", "%x\r", "%x\x00\r\n", "0000000000000000000%x\r\n", "ffffffffffffffff%x\r\n", "%xg\r\n", "\r\n%x\r\n",
	} {
		ask("Transfer-Encoding: chunked\r\n", fmt.Sprintf(size, len(hidden))+hidden+"\r\n0\r\n\r\n")
	}
	for _, end := range []string{
		"0\r\nContent-Length: 50\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\nX: y\r\n\r\n", "0\n\n", "0\r\n\n", "0\r\r\n\r\n", "00\r\n\r\n", "0;x\r\n\r\n", "0\r\nHost: other\r\n\r\n",
	} {
		ask("Transfer-Encoding: chunked\r\n", "1\r\na\r\n"+end)
		ask("Trailer: X, Content-Length\r\nTransfer-Encoding: chunked\r\n", "1\r\na\r\n"+end)
		ask("Transfer-Encoding: chunked\r\n", "1\r\nab\r\n"+end)
	}
	for _, line := range []string{
		"GET /front HTTP/1.1\n", "GET /front HTTP/1.1\r", "GET  /front HTTP/1.1\r\n", "GET /front  HTTP/1.1\r\n", "GET\t/front\tHTTP/1.1\r\n", "GET /front HTTP/1.1 \r\n", "GET /front\r\n",
		"GET /front HTTP/1.0\r\n", "GET /front HTTP/1.2\r\n", "GET /front HTTP/2.0\r\n", "GET /front HTTP/0.9\r\n", "GET /front HTTP/01.1\r\n", "GET /a b HTTP/1.1\r\n", "GET /a\x00b HTTP/1.1\r\n",
		"GET http://other.example/front HTTP/1.1\r\n", "GET //other.example/front HTTP/1.1\r\n", "GET /a\xffb HTTP/1.1\r\n", "GET /%0d%0aX:%20y HTTP/1.1\r\n", "G\x00ET /front HTTP/1.1\r\n", "\r\nGET /front HTTP/1.1\r\n",
	} {
		all = append(all, line+"Host: "+desyncHost+"\r\nContent-Length: 0\r\n\r\n", line+"Host: "+desyncHost+"\nContent-Length: 0\n\n")
	}
	return all
}

// fields returns header fields of HTTP/2 and HTTP/3 that would begin another request, or mean another length, if they were written as
// HTTP/1.1.
func fields() (all [][]string) {
	good := []string{":method", "POST", ":scheme", "https", ":authority", desyncHost, ":path", "/front"}
	with := func(name, value string) { all = append(all, append(slices.Clone(good), name, value)) }
	for _, value := range []string{"a\r\n\r\n" + hidden, "a\nb: c", "a\rb: c", "a\x00b", "a\r\nTransfer-Encoding: chunked"} {
		with("x", value)
		with("x"+value, "y")
		for i := 1; i < len(good); i += 2 {
			changed := slices.Clone(good)
			changed[i] += value
			all = append(all, changed)
		}
	}
	for _, field := range [][2]string{
		{"transfer-encoding", "chunked"}, {"transfer-encoding", "identity"}, {"content-length", "50"}, {"content-length", "+0"}, {"content-length", "0, 50"}, {"connection", "close"}, {"connection", "x"},
		{"keep-alive", "1"}, {"upgrade", "h2c"}, {"te", "chunked"}, {"host", "other.example"}, {"Transfer-Encoding", "chunked"}, {"transfer-encoding:", "chunked"}, {"x: y", "z"}, {"x ", "y"}, {" x", "y"},
		{"transfer_encoding", "chunked"}, {":path", "/hidden"}, {":unknown", "x"}, {"expect", "100-continue"}, {"trailer", "content-length"}, {"content-length", "0\x0b"}, {"", "x"},
	} {
		with(field[0], field[1])
	}
	for _, path := range []string{"", "front", "*", "http://other.example/front", "/front HTTP/1.1", "/a b", "/front#x", "/\x7f", "//other.example/"} {
		changed := slices.Clone(good)
		changed[len(changed)-1] = path
		all = append(all, changed)
	}
	for _, method := range []string{"", "GET /hidden", "post", "CONNECT", "P\tOST", "GET\x00"} {
		changed := slices.Clone(good)
		changed[1] = method
		all = append(all, changed)
	}
	return all
}

// TestNoTwoReadings sends ambiguous requests. Other servers have read such requests in different ways. The gateway must send on only
// requests with one meaning. An honest client that comes next must get its own answer.
func TestNoTwoReadings(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: desyncHost})
	backend, address := newStrict(t)
	for _, one := range b.state.Backends {
		one.Endpoints = []netip.AddrPort{address}
	}
	b.apply()

	check := func(what any) {
		t.Helper()
		c, err := b.secured("http/1.1", desyncHost)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		status, body, err := rawHTTP1(c, "GET /honest HTTP/1.1\r\nHost: "+desyncHost+"\r\nConnection: close\r\n\r\n")
		if status != 200 || body != "/honest" || err != nil {
			t.Errorf("after %q an honest client gets %d, %q, %v", what, status, body, err)
		}
		backend.mu.Lock()
		defer backend.mu.Unlock()
		for _, fault := range backend.faults {
			t.Errorf("%q is sent on with %s", what, fault)
		}
		if slices.Contains(backend.paths, "/hidden") {
			t.Errorf("%q brings what was hidden to the backend", what)
		}
		backend.paths, backend.faults = nil, nil
	}
	check("nothing")
	sent := corpus()
	for _, request := range sent {
		c, err := b.secured("http/1.1", desyncHost)
		if err != nil {
			t.Fatal(err)
		}
		// The gateway may wait for more of the request.
		_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _, _ = rawHTTP1(c, request)
		c.Close()
		check(request)
	}
	headers := fields()
	for _, fields := range headers {
		c, err := b.secured("h2", desyncHost)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _, _ = testutil.RawHTTP2(c, fields...)
		c.Close()
		check(fields)
		_, _, _ = b.rawHTTP3(desyncHost, fields...)
		check(fields)
	}
	t.Logf("%d requests of HTTP/1.1, and %d each of HTTP/2 and HTTP/3", len(sent), len(headers))
}
