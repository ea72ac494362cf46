package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// loopbackPatience is how long an answer is waited for.
const loopbackPatience = 2 * time.Second

// loopback asks the node of this pod to open a TCP connection to its own 127.0.0.1. No
// socket sends such a packet out of a pod, so it makes it itself, with the right
// CAP_NET_RAW, which all pods have that do not give it up. It prints what came back:
// open, closed, or nothing.
func loopback(text string) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return err
	}
	device, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	own, err := ownAddress(device)
	if err != nil {
		return err
	}
	gateway, err := gatewayHardware()
	if err != nil {
		return err
	}
	const allProtocols = 0x0300 // ETH_P_ALL in network order
	socket, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, allProtocols)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer syscall.Close(socket)
	address := &syscall.SockaddrLinklayer{Protocol: allProtocols, Ifindex: device.Index}
	if err := syscall.Bind(socket, address); err != nil {
		return err
	}
	ownPort := uint16(20000 + os.Getpid()%20000)
	target := net.IPv4(127, 0, 0, 1).To4()
	frame := slicesOf(gateway, device.HardwareAddr, []byte{8, 0}, synPacket(own, target, ownPort, uint16(port)))
	if err := syscall.Sendto(socket, frame, 0, address); err != nil {
		return err
	}
	timeout := syscall.NsecToTimeval(int64(loopbackPatience / 10))
	if err := syscall.SetsockoptTimeval(socket, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout); err != nil {
		return err
	}
	got := make([]byte, 2048)
	for end := time.Now().Add(loopbackPatience); time.Now().Before(end); {
		n, _, err := syscall.Recvfrom(socket, got, 0)
		if err != nil || n < 14+40 {
			continue
		}
		packet := got[14:n]
		if packet[0] != 0x45 || !bytes.Equal(packet[16:20], own) || binary.BigEndian.Uint16(packet[22:]) != ownPort {
			continue
		}
		const rst = 4
		if packet[33]&rst != 0 {
			fmt.Println("closed")
		} else {
			fmt.Println("open")
		}
		return nil
	}
	fmt.Println("nothing")
	return nil
}

func slicesOf(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// ownAddress is the IPv4 address of a device.
func ownAddress(device *net.Interface) (net.IP, error) {
	addresses, err := device.Addrs()
	if err != nil {
		return nil, err
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil {
			return network.IP.To4(), nil
		}
	}
	return nil, errors.New("eth0 has no IPv4 address")
}

// gatewayHardware is the hardware address of the default gateway, which is the node.
func gatewayHardware() (net.HardwareAddr, error) {
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(routes)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != "00000000" {
			continue
		}
		reversed, err := hex.DecodeString(fields[2])
		if err != nil || len(reversed) != 4 {
			return nil, fmt.Errorf("the route is %q", line)
		}
		gateway := net.IPv4(reversed[3], reversed[2], reversed[1], reversed[0])
		// So that the kernel finds it out.
		if connection, err := net.Dial("udp", net.JoinHostPort(gateway.String(), "9")); err == nil {
			_, _ = connection.Write([]byte("?"))
			connection.Close()
		}
		for range 20 {
			table, err := os.ReadFile("/proc/net/arp")
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(string(table)) {
				entry := strings.Fields(line)
				if len(entry) > 3 && entry[0] == gateway.String() && entry[3] != "00:00:00:00:00:00" {
					return net.ParseMAC(entry[3])
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil, errors.New("the gateway's hardware address is not known")
}

// synPacket is the first packet of a TCP connection, with its IPv4 header.
func synPacket(from, to net.IP, fromPort, toPort uint16) []byte {
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment, fromPort)
	binary.BigEndian.PutUint16(segment[2:], toPort)
	binary.BigEndian.PutUint32(segment[4:], 1)
	segment[12], segment[13] = 5<<4, 2 // the length in words, and SYN
	binary.BigEndian.PutUint16(segment[14:], 64240)
	pseudo := slicesOf(from, to, []byte{0, syscall.IPPROTO_TCP, 0, byte(len(segment))}, segment)
	binary.BigEndian.PutUint16(segment[16:], checksum(pseudo))
	header := make([]byte, 20)
	header[0], header[8], header[9] = 0x45, 64, syscall.IPPROTO_TCP
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(segment)))
	copy(header[12:], from)
	copy(header[16:], to)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return slicesOf(header, segment)
}

// checksum is the Internet's (RFC 1071).
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
