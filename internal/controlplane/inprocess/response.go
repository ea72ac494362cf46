package inprocess

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// responseWriter is the handler's side of a response. The client reads from body
// what the handler writes. Like the writer of an HTTP/2 stream it implements
// http.Flusher and http.CloseNotifier, which the API server's filters ask for
// (apiserver/pkg/endpoints/responsewriter), but not http.Hijacker.
//
//upstream:relies-on k8s.io/apiserver/pkg/endpoints/responsewriter/wrapper.go WrapForHTTP1Or2
type responseWriter struct {
	ctx     context.Context
	request *http.Request
	header  http.Header

	start    sync.Once
	started  chan struct{} // closed when response is filled
	response *http.Response
	body     *io.PipeReader
	write    *io.PipeWriter

	finished chan struct{} // closed when the handler has returned
	err      error         // set if the handler failed
	unlink   func() bool
}

func newResponseWriter(ctx context.Context, request *http.Request) *responseWriter {
	w := &responseWriter{
		ctx:      ctx,
		request:  request,
		header:   http.Header{},
		started:  make(chan struct{}),
		finished: make(chan struct{}),
	}
	w.body, w.write = io.Pipe()
	// A caller that has gone does not read any more, and must not block the
	// handler.
	w.unlink = context.AfterFunc(ctx, func() { w.write.CloseWithError(context.Cause(ctx)) })
	return w
}

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(status int) {
	if status >= 100 && status < 200 {
		return // informational: the real header is still to come
	}
	w.start.Do(func() {
		w.response = &http.Response{
			Status:        strconv.Itoa(status) + " " + http.StatusText(status),
			StatusCode:    status,
			Proto:         "HTTP/2.0",
			ProtoMajor:    2,
			Header:        w.header.Clone(),
			ContentLength: -1,
			Request:       w.request,
			Body:          http.NoBody,
		}
		if length, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil {
			w.response.ContentLength = length
		}
		close(w.started)
	})
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if !w.hasBody() {
		if w.request.Method == http.MethodHead {
			return len(p), nil // like net/http: counted and dropped
		}
		return 0, http.ErrBodyNotAllowed
	}
	return w.write.Write(p)
}

// Flush sends the header. The body is never buffered.
func (w *responseWriter) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier for the filters that still use it.
func (w *responseWriter) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

func (w *responseWriter) hasBody() bool {
	status := w.response.StatusCode
	return w.request.Method != http.MethodHead && status != http.StatusNoContent && status != http.StatusNotModified
}

// finish ends the response after the handler has returned. A handler that returned
// because the caller had gone has not answered, even if it reports no error.
func (w *responseWriter) finish(err error) {
	if err == nil {
		err = context.Cause(w.ctx)
	}
	if err == nil {
		w.WriteHeader(http.StatusOK)
	}
	w.err = err
	w.unlink()
	w.write.CloseWithError(err) // nil reads as io.EOF
	close(w.finished)
}

// result returns the response for the client. The response must have been started
// or finished. Closing its body ends the handler's context.
func (w *responseWriter) result(cancel context.CancelCauseFunc) (*http.Response, error) {
	select {
	case <-w.started:
	default:
		return nil, w.err
	}
	if w.hasBody() {
		w.response.Body = &responseBody{w.body, cancel}
	}
	return w.response, nil
}

type responseBody struct {
	*io.PipeReader
	cancel context.CancelCauseFunc
}

func (b *responseBody) Close() error {
	b.cancel(context.Canceled)
	return b.PipeReader.Close()
}
