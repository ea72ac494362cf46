package sockets

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

// errHeader says that a client which nobody trusts has sent a header of the PROXY protocol.
var errHeader = errors.New("the connection begins with a header of the PROXY protocol, and its address is not one of the trusted proxies")

// readAhead is how many bytes are read at once until the header has ended. It is enough for
// a whole header of version 1.
const readAhead = 128

// readHeader reads the header with which a trusted proxy begins a connection, and learns the
// address of the client from it. Versions 1 and 2 are read. The caller has set a deadline.
func (c *conn) readHeader() error {
	// The library reads at most 4 KiB of version 2.
	reader := bufio.NewReaderSize(c.Conn, readAhead)
	header, err := proxyproto.Read(reader)
	if err != nil {
		return fmt.Errorf("read header of the PROXY protocol: %w", err)
	}
	// The proxy itself is the client if it only looks whether this port is open.
	if !header.Command.IsLocal() && header.TransportProtocol.IsStream() {
		source, ok := header.SourceAddr.(*net.TCPAddr)
		if !ok {
			return fmt.Errorf("header of the PROXY protocol has no TCP address of the client: %v", header.SourceAddr)
		}
		address, ok := netip.AddrFromSlice(source.IP)
		if !ok {
			return fmt.Errorf("header of the PROXY protocol has the invalid client address %v", source)
		}
		c.remote = net.TCPAddrFromAddrPort(netip.AddrPortFrom(address.Unmap(), uint16(source.Port)))
	} else if !header.Command.IsLocal() && !header.TransportProtocol.IsUnspec() {
		return errors.New("header of the PROXY protocol is for a protocol other than TCP")
	}
	if n := reader.Buffered(); n > 0 {
		c.before = make([]byte, n)
		_, _ = reader.Read(c.before)
	}
	return nil
}

// inspect reads until it is clear that the connection does not begin with a header of the
// PROXY protocol. The bytes are kept for Read.
func (c *conn) inspect() error {
	for {
		switch startOf(c.before) {
		case startYes:
			return errHeader
		case startNo:
			c.suspect = false
			return nil
		}
		buffer := make([]byte, readAhead)
		n, err := c.Conn.Read(buffer)
		c.before = append(c.before, buffer[:n]...)
		if err != nil && n == 0 {
			return err
		}
	}
}

// start says whether bytes begin as a header of the PROXY protocol does.
type start int

const (
	startUnclear start = iota
	startYes
	startNo
)

// startOf looks for the signatures of both versions. Nothing is unclear after 12 bytes.
func startOf(first []byte) start {
	unclear := false
	for _, signature := range [][]byte{proxyproto.SIGV1, proxyproto.SIGV2} {
		if bytes.HasPrefix(first, signature) {
			return startYes
		}
		unclear = unclear || bytes.HasPrefix(signature, first)
	}
	if unclear {
		return startUnclear
	}
	return startNo
}
