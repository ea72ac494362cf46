package requests

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// copyBuffer is how many bytes of an answer are read at a time.
const copyBuffer = 32 << 10

// answerWriter notes what is answered.
type answerWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// WriteHeader implements http.ResponseWriter.
func (w *answerWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *answerWriter) Write(content []byte) (int, error) {
	n, err := w.ResponseWriter.Write(content)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *answerWriter) flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// deliver answers with what an attempt has brought. If it breaks off, the connection of the
// client does, too.
func (a *attempts) deliver(t *attempt) {
	defer t.end()
	answer := t.answer
	if answer.StatusCode == http.StatusSwitchingProtocols {
		a.switchProtocols(t)
		return
	}
	removeHops(answer.Header)
	h := a.w.Header()
	a.copyHeader(h, answer.Header)
	a.remember(h, t.endpoint)
	a.decorate(h)
	announced := len(answer.Trailer)
	for name := range answer.Trailer {
		h.Add("Trailer", name)
	}
	if !a.body.isWhole() {
		// Without this, a server of HTTP/1 would read the rest of the body itself when the answer
		// begins, and the backend would never get it.
		_ = http.NewResponseController(a.w.ResponseWriter).EnableFullDuplex()
	}
	a.w.WriteHeader(answer.StatusCode)
	if err := a.copyBody(answer); err != nil {
		var gone clientError
		if !errors.As(err, &gone) {
			panic(http.ErrAbortHandler)
		}
		return
	}
	if len(answer.Trailer) == 0 {
		return
	}
	// Without this, a short answer would get a length, which leaves no room for trailers.
	a.w.flush()
	prefix := ""
	if len(answer.Trailer) != announced {
		prefix = http.TrailerPrefix
	}
	for name, values := range answer.Trailer {
		h[prefix+name] = values
	}
}

// copyHeader copies the header of an answer.
func (x *exchange) copyHeader(to, from http.Header) {
	for name, values := range from {
		// Alternative services of a backend are none of the gateway.
		if name != "Alt-Svc" {
			to[name] = values
		}
	}
}

// clientError says that the client does not take the answer.
type clientError struct{ error }

// copyBody copies the body of an answer. What the backend sends reaches the client at once: when
// less comes than there is room for, more may take a while. Of a body with a length, the server
// mostly has nothing left to flush then, because it does not buffer large writes.
func (x *exchange) copyBody(answer *http.Response) error {
	unknown := answer.ContentLength < 0
	if unknown && x.r.Method != http.MethodHead {
		x.w.flush() // events may come much later
	}
	buffer := x.buffers.Get().(*[copyBuffer]byte) //nolint:forcetypeassert // nothing else is in it
	defer x.buffers.Put(buffer)
	for copied := int64(0); ; {
		n, err := answer.Body.Read(buffer[:])
		if n > 0 {
			copied += int64(n)
			if _, err := x.w.Write(buffer[:n]); err != nil {
				return clientError{err}
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case unknown, n < len(buffer) && copied != answer.ContentLength:
			x.w.flush()
		}
	}
}

// decorate changes the header of an answer by the filters of rule and target.
func (x *exchange) decorate(h http.Header) {
	for _, f := range x.answered {
		if f.cors != nil {
			f.cors.apply(x.r, h)
		}
	}
	for i := len(x.answered) - 1; i >= 0; i-- {
		x.answered[i].answer.apply(h)
	}
}

// fail answers with an error.
func (x *exchange) fail(status int) {
	x.refuse(status, http.StatusText(status)+"\n")
}

// reply answers with a short text.
func (x *exchange) reply(status int, text string) {
	h := x.w.Header()
	if text != "" {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("X-Content-Type-Options", "nosniff")
	}
	h.Set("Content-Length", strconv.Itoa(len(text)))
	x.decorate(h)
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		_, _ = io.WriteString(&x.w, text)
	}
}

// isGRPC tells whether the client expects the statuses of gRPC.
func (x *exchange) isGRPC() bool {
	return x.rule != nil && x.rule.grpc || strings.HasPrefix(x.r.Header.Get("Content-Type"), "application/grpc")
}

// failGRPC answers with an error of gRPC: status 200, and no body.
// Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
func (x *exchange) failGRPC(status int) {
	h := x.w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(codeOf(status)))
	h.Set("Grpc-Message", http.StatusText(status))
	x.decorate(h)
	x.w.WriteHeader(http.StatusOK)
	x.w.status = status // for log and metrics
}

// codeOf returns the code of gRPC for a status of HTTP.
// Source: https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md, except for
// what the Gateway API (GRPCRouteRule.BackendRefs) and timeouts want.
func codeOf(status int) int {
	switch status {
	case http.StatusBadRequest:
		return 13 // internal
	case http.StatusUnauthorized:
		return 16 // unauthenticated
	case http.StatusForbidden:
		return 7 // permission denied
	case http.StatusNotFound:
		return 12 // unimplemented
	case http.StatusRequestEntityTooLarge:
		return 8 // resource exhausted
	case http.StatusGatewayTimeout:
		return 4 // deadline exceeded
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		return 14 // unavailable
	}
	return 2 // unknown
}

// hops are headers for one connection only. Source: httputil.ReverseProxy.
var hops = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// removeHops removes the headers that are for one connection only.
func removeHops(h http.Header) {
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hops {
		delete(h, name)
	}
}

// wantsTrailers tells whether the client says that it understands trailers.
func wantsTrailers(h http.Header) bool {
	return httpguts.HeaderValuesContainsToken(h["Te"], "trailers")
}

// altSvc says that the port also speaks HTTP/3.
func altSvc(port uint16) string { return `h3=":` + strconv.Itoa(int(port)) + `"; ma=86400` }
