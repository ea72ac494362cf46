package egress

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

const (
	// dnsPatience is how long one DNS server may take to answer. resolv.conf(5) has 5 seconds too.
	dnsPatience = 5 * time.Second
	// maxQueries is how many requests may wait for answers at a time.
	maxQueries = 512
	// maxMessage is the size of the largest DNS message over UDP, in bytes.
	maxMessage = 65535
	// headerLength is the length of the header of a DNS message: RFC 1035, 4.1.1.
	headerLength = 12
)

// nameservers returns the machine's DNS servers. It reads the file at each call, because the machine may move.
func (e *Egress) nameservers() []string {
	text, err := os.ReadFile(e.cfg.ResolvConf)
	if err != nil {
		return nil
	}
	return nameservers(text)
}

// nameservers returns the addresses in the text of a resolv.conf, with the port.
func nameservers(text []byte) []string {
	var found []string
	for scanner := bufio.NewScanner(bytes.NewReader(text)); scanner.Scan(); {
		words := strings.Fields(scanner.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if address, err := netip.ParseAddr(words[1]); err == nil {
			found = append(found, netip.AddrPortFrom(address, 53).String())
		}
	}
	return found
}

// resolveUDP answers requests until the socket is closed.
func (e *Egress) resolveUDP() {
	places := make(chan struct{}, maxQueries)
	buffer := make([]byte, maxMessage)
	for {
		n, from, err := e.dnsUDP.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < headerLength {
			continue
		}
		query := bytes.Clone(buffer[:n])
		select {
		case places <- struct{}{}:
		default:
			continue // The client asks again.
		}
		go func() {
			defer func() { <-places }()
			_, _ = e.dnsUDP.WriteTo(e.ask(query), from)
		}()
	}
}

// ask returns the answer of the first of the machine's DNS servers that answers, or says that none did.
func (e *Egress) ask(query []byte) []byte {
	for _, server := range e.nameservers() {
		if answer := askOne(server, query); answer != nil {
			return answer
		}
	}
	return failure(query)
}

func askOne(server string, query []byte) []byte {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return nil
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dnsPatience))
	if _, err := conn.Write(query); err != nil {
		return nil
	}
	buffer := make([]byte, maxMessage)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil
		}
		if n >= headerLength && bytes.Equal(buffer[:2], query[:2]) {
			return buffer[:n]
		}
	}
}

// failure turns a request into the answer SERVFAIL: RFC 1035, 4.1.1.
func failure(query []byte) []byte {
	answer := bytes.Clone(query)
	answer[2] |= 0x80
	answer[3] = answer[3]&0xf0 | 2
	return answer
}

// resolveTCP connects a node to the first DNS server that can be reached.
func (e *Egress) resolveTCP(conn net.Conn) {
	defer conn.Close()
	for _, server := range e.nameservers() {
		out, err := net.DialTimeout("tcp", server, dnsPatience)
		if err == nil {
			defer out.Close()
			Pipe(conn.(*net.TCPConn), out.(*net.TCPConn))
			return
		}
	}
}
