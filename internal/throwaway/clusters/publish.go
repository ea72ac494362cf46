package clusters

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ParsePort reads a port of the machine.
func ParsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("invalid port %q: use a number from 1 to 65535, such as 5001", text)
	}
	return uint16(port), nil
}

// errPublished says what a published port looks like.
var errPublished = errors.New("use HOST-PORT:NODE-PORT such as 8080:80, or ADDRESS:HOST-PORT:NODE-PORT such as 0.0.0.0:8080:80. Ports are 1 to 65535")

// ParsePublished reads HOST-PORT:NODE-PORT or ADDRESS:HOST-PORT:NODE-PORT. Without an address, only this
// machine reaches the port.
func ParsePublished(text string) (Published, error) {
	fail := func() (Published, error) {
		return Published{}, fmt.Errorf("invalid published port %q: %w", text, errPublished)
	}
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return fail()
	}
	listen, node := text[:at], text[at+1:]
	if !strings.Contains(listen, ":") {
		listen = "127.0.0.1:" + listen
	}
	address, err := netip.ParseAddrPort(listen)
	port, fault := strconv.ParseUint(node, 10, 16)
	if err != nil || fault != nil || port == 0 || address.Port() == 0 {
		return fail()
	}
	return Published{address, uint16(port)}, nil
}
