package main

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// knockPause is the time between two attempts of knock, and between two bytes of hold.
const knockPause = 5 * time.Millisecond

// doors counts what arrives at a port, by the client's address and protocol.
type doors struct {
	mu      sync.Mutex
	arrived map[string]int
}

func (d *doors) count(client net.Addr, protocol string) {
	host, _, _ := net.SplitHostPort(client.String())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arrived[host+" "+protocol]++
}

// ServeHTTP answers with a line for each client and protocol: ADDRESS PROTOCOL COUNT.
func (d *doors) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, who := range slices.Sorted(maps.Keys(d.arrived)) {
		fmt.Fprintln(w, who, d.arrived[who])
	}
}

// serveDoors counts UDP datagrams and TCP connections at a port, sends back what comes
// over TCP, and answers HTTP on port 8080 with the counts.
func serveDoors(port string) error {
	d := &doors{arrived: map[string]int{}}
	packets, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	connections, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	go func() {
		for buffer := make([]byte, 64); ; {
			if _, client, err := packets.ReadFrom(buffer); err == nil {
				d.count(client, "udp")
			}
		}
	}()
	go func() {
		for {
			connection, err := connections.Accept()
			if err != nil {
				continue
			}
			d.count(connection.RemoteAddr(), "tcp")
			go func() {
				defer connection.Close()
				_, _ = io.Copy(connection, connection)
			}()
		}
	}()
	return http.ListenAndServe(":8080", d)
}

// knock sends UDP datagrams and TCP connections to an address without an end.
func knock(address string) error {
	packets, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	dialer := net.Dialer{Timeout: 100 * time.Millisecond}
	for {
		// Nobody may listen, and rules may refuse: the listener counts what arrives.
		_, _ = packets.Write([]byte("knock"))
		go func() {
			if connection, err := dialer.Dial("tcp", address); err == nil {
				connection.Close()
			}
		}()
		time.Sleep(knockPause)
	}
}

// hold keeps one TCP connection to an address busy. It ends with an error when the
// connection breaks, or when nothing came back for ten seconds.
func hold(address string) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	for letter := make([]byte, 1); ; time.Sleep(knockPause) {
		if err := connection.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := connection.Write(letter); err != nil {
			return err
		}
		if _, err := io.ReadFull(connection, letter); err != nil {
			return err
		}
	}
}

// watchDoor tries connections to an address for a time, and prints a line each time when they begin
// to fail or to succeed: the state, and when the first attempt in it began, in nanoseconds.
func watchDoor(address, seconds string) error {
	duration, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return err
	}
	last := ""
	for start := time.Now(); time.Since(start).Seconds() < duration; time.Sleep(time.Millisecond) {
		// A busy machine may be slow to answer, so that a failure needs patience. After a failure, only
		// a success is news, and the next attempt must not begin late.
		dialer := net.Dialer{Timeout: 20 * time.Millisecond}
		if last == "closed" {
			dialer.Timeout = 3 * time.Millisecond
		}
		began, state := time.Now(), "closed"
		if connection, err := dialer.Dial("tcp", address); err == nil {
			state = "open"
			// Reset, so that no port is left waiting.
			_ = connection.(*net.TCPConn).SetLinger(0)
			connection.Close()
		}
		if state != last {
			fmt.Println(state, began.UnixNano())
			last = state
		}
	}
	return nil
}
