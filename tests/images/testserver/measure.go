package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The first byte of a connection says what its client wants.
const (
	wantSink = 's' // the server counts what it is sent, and then says how many bytes that was
	wantEcho = 'e' // the server sends back each message
)

const (
	messageSize   = 64      // bytes of a request and of an answer
	chunkSize     = 1 << 17 // bytes of one write
	warmUp        = 300 * time.Millisecond
	roundTripTime = time.Second
	connects      = 300
)

// measured is what measure prints. Times are in seconds.
type measured struct {
	BytesPerSecond float64 `json:"bytesPerSecond"`
	RoundTrip      float64 `json:"roundTrip"`
	RoundTripP99   float64 `json:"roundTripP99"`
	Connect        float64 `json:"connect"`
	// Busy is how long the machine's processors worked for a Gbit.
	Busy float64 `json:"busy"`
}

// serveMeasure answers measure.
func serveMeasure(port string) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go answerMeasure(conn)
	}
}

func answerMeasure(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, chunkSize)
	if _, err := io.ReadFull(conn, buffer[:1]); err != nil {
		return
	}
	switch buffer[0] {
	case wantSink:
		var count uint64
		for {
			n, err := conn.Read(buffer)
			count += uint64(n)
			if err == io.EOF {
				break
			}
			if err != nil {
				return
			}
		}
		_ = binary.Write(conn, binary.BigEndian, count)
	case wantEcho:
		for {
			if _, err := io.ReadFull(conn, buffer[:messageSize]); err != nil {
				return
			}
			if _, err := conn.Write(buffer[:messageSize]); err != nil {
				return
			}
		}
	}
}

// measure prints how fast the way to a serveMeasure is.
func measure(address, seconds string) error {
	duration, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return err
	}
	var result measured
	began, before := time.Now(), busy()
	if result.BytesPerSecond, err = throughput(address, time.Duration(duration*float64(time.Second))); err != nil {
		return fmt.Errorf("throughput: %w", err)
	}
	result.Busy = (busy() - before) / (result.BytesPerSecond * time.Since(began).Seconds() * 8 / 1e9)
	if err := result.roundTrips(address); err != nil {
		return fmt.Errorf("round trips: %w", err)
	}
	if result.Connect, err = connectTime(address); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// busy returns for how many seconds all processors of the machine have worked since it has booted.
func busy() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	total := 0.0
	for i, field := range strings.Fields(line)[1:] {
		ticks, _ := strconv.ParseFloat(field, 64)
		if i != 3 && i != 4 { // idle, and waiting for a disk
			total += ticks
		}
	}
	return total / 100
}

// throughput sends for a time over one connection. What counts is what the
// server has got.
func throughput(address string, duration time.Duration) (float64, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	chunk := make([]byte, chunkSize)
	chunk[0] = wantSink
	began := time.Now()
	for time.Since(began) < duration {
		if _, err := conn.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	var count uint64
	if err := binary.Read(conn, binary.BigEndian, &count); err != nil {
		return 0, err
	}
	return float64(count) / time.Since(began).Seconds(), nil
}

// roundTrips sends a message and waits for the answer, again and again over one
// connection.
func (m *measured) roundTrips(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{wantEcho}); err != nil {
		return err
	}
	message := make([]byte, messageSize)
	var times []time.Duration
	for began := time.Now(); time.Since(began) < warmUp+roundTripTime; {
		sent := time.Now()
		if _, err := conn.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		if sent.Sub(began) > warmUp {
			times = append(times, time.Since(sent))
		}
	}
	slices.Sort(times)
	m.RoundTrip = times[len(times)/2].Seconds()
	m.RoundTripP99 = times[len(times)*99/100].Seconds()
	return nil
}

// connectTime is the median time that a new connection takes.
func connectTime(address string) (float64, error) {
	times := make([]time.Duration, connects)
	for i := range times {
		began := time.Now()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return 0, err
		}
		times[i] = time.Since(began)
		// Reset, so that no port is left waiting.
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	slices.Sort(times)
	return times[connects/2].Seconds(), nil
}
