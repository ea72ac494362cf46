package requests

import (
	"net/netip"
	"strconv"
	"time"
)

// maxLogged is how many bytes of what a client has chosen are in a line of the log.
const maxLogged = 512

// Entry is what the access log says about a request.
type Entry struct {
	// Time is when the request began, and Duration how long it took until its answer was sent.
	Time     time.Time
	Duration time.Duration
	// Client is the address of the client, also if a trusted proxy is in between.
	Client netip.Addr
	// Listener, Route and Backend are the names of what served the request, and Endpoint is the
	// address. They are empty if there was none.
	Listener, Route, Backend, Endpoint string
	// Method, Host, Path (without the query, which may have secrets), Protocol and UserAgent are
	// as the client has sent them.
	Method, Host, Path, Protocol, UserAgent string
	// Status is that of HTTP, also for answers of gRPC by the gateway. It is 499 if the client
	// went away before.
	Status int
	// Bytes is the length of the answer's body.
	Bytes int64
}

// String returns the entry as one line of key=value pairs. Values with other than printable ASCII
// characters are quoted as in Go.
func (e *Entry) String() string {
	line := make([]byte, 0, 512)
	line = append(line, "time="...)
	line = e.Time.UTC().AppendFormat(line, "2006-01-02T15:04:05.000Z")
	for _, pair := range [...][2]string{
		{" client=", e.Client.String()},
		{" listener=", e.Listener},
		{" route=", e.Route},
		{" backend=", e.Backend},
		{" endpoint=", e.Endpoint},
		{" method=", e.Method},
		{" host=", e.Host},
		{" path=", e.Path},
		{" protocol=", e.Protocol},
	} {
		line = appendValue(append(line, pair[0]...), pair[1])
	}
	line = strconv.AppendInt(append(line, " status="...), int64(e.Status), 10)
	line = strconv.AppendInt(append(line, " bytes="...), e.Bytes, 10)
	line = strconv.AppendFloat(append(line, " duration="...), e.Duration.Seconds(), 'f', 6, 64)
	return string(appendValue(append(line, " agent="...), e.UserAgent))
}

func appendValue(line []byte, value string) []byte {
	if len(value) > maxLogged {
		value = value[:maxLogged]
	}
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '=' {
			return strconv.AppendQuoteToASCII(line, value)
		}
	}
	return append(line, value...)
}

// finish notes a request that has ended.
func (x *exchange) finish() {
	if x.accessLog == nil || x.socket == nil || !x.socket.accessLog {
		return
	}
	r := x.r
	e := &Entry{
		Time: x.began, Duration: time.Since(x.began), Client: x.client.address, Backend: x.backend, Endpoint: x.endpoint,
		Method: r.Method, Host: r.Host, Path: r.URL.EscapedPath(), Protocol: r.Proto, UserAgent: r.UserAgent(),
		Status: x.w.status, Bytes: x.w.bytes,
	}
	if x.listener != nil {
		e.Listener = x.listener.name
	}
	if x.rule != nil {
		e.Route = x.rule.route.name
	}
	x.accessLog(e)
}
