package main

import (
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

// serveDNS is a nameserver on UDP port 53 that knows one name.
func serveDNS(name, address string) error {
	known, err := dnsmessage.NewName(name)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", ":53")
	if err != nil {
		return err
	}
	buffer := make([]byte, 4096)
	for {
		n, client, err := socket.ReadFrom(buffer)
		if err != nil {
			return err
		}
		var query dnsmessage.Message
		if query.Unpack(buffer[:n]) != nil || len(query.Questions) != 1 {
			continue
		}
		answer := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true, RecursionDesired: query.RecursionDesired},
			Questions: query.Questions,
		}
		question := query.Questions[0]
		switch {
		case question.Name != known:
			answer.RCode = dnsmessage.RCodeNameError
		case question.Type == dnsmessage.TypeA:
			answer.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: known, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: ip.As4()},
			}}
		}
		if packed, err := answer.Pack(); err == nil {
			_, _ = socket.WriteTo(packed, client)
		}
	}
}
