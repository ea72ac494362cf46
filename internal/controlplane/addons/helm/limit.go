package helm

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
)

// maxFetch limits how many bytes are received for one chart: the repository's index or
// the registry's answers, redirects, and the archive. The largest public indexes have
// about 20 MB.
const maxFetch = 32 << 20

// tooMuchError says that a server sends more than any chart needs.
type tooMuchError struct{ address string }

func (e *tooMuchError) Error() string {
	return fmt.Sprintf("%s sent more than %d MiB for this chart: put the chart's archive into chartContent, or into the server's folder of charts", e.address, maxFetch>>20)
}

// limited limits what a transport receives in all to maxFetch, and turns off
// decompression: Helm and the registry client read answers of any size into memory.
func limited(transport *http.Transport) {
	left := new(atomic.Int64)
	left.Store(maxFetch)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &limitedConn{conn, address, left}, nil
	}
	transport.DisableCompression = true
}

// limitedConn is a connection that shares its limit with others.
type limitedConn struct {
	net.Conn
	address string
	left    *atomic.Int64
}

// Read implements net.Conn.
func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left.Add(-int64(n)) < 0 {
		return 0, &tooMuchError{c.address}
	}
	return n, err
}
