package registry

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
)

// guard refuses requests that a web page has caused, and requests for other hosts. A page can send
// requests to any address that its user can reach, with the name of the page's own host if the DNS
// answers for this name change (DNS rebinding).
func guard(host func(string) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header := w.Header()
		header.Set("Docker-Distribution-API-Version", "registry/2.0")
		header.Set("X-Content-Type-Options", "nosniff")
		site := req.Header.Get("Sec-Fetch-Site")
		if len(req.Header.Values("Origin")) > 0 || site != "" && site != "none" {
			refuse(w, fault{http.StatusForbidden, codeDenied, "web pages cannot use this registry"})
			return
		}
		if name := (&url.URL{Host: req.Host}).Hostname(); !host(name) {
			refuse(w, fault{http.StatusForbidden, codeDenied, fmt.Sprintf("this registry is not %.300q: name images localhost:PORT/NAME", name)})
			return
		}
		next.ServeHTTP(w, req)
	})
}

func isLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || host == "127.0.0.1" || host == "::1"
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// onlyUsers refuses the requests of processes of other users than those with the IDs users. Everybody
// may ask whether this is a registry: clients do that first, and show no message if it is refused.
func onlyUsers(next http.Handler, users ...int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/v2/" {
			next.ServeHTTP(w, req)
			return
		}
		user, err := userOf(req)
		if err != nil {
			refuse(w, fault{http.StatusForbidden, codeDenied, fmt.Sprintf("this registry cannot tell whose request this is: %v", err)})
			return
		}
		if !slices.Contains(users, user) {
			refuse(w, fault{http.StatusForbidden, codeDenied, fmt.Sprintf("user %d cannot use this registry: only root and the user who created the cluster can. Try again with sudo", user)})
			return
		}
		next.ServeHTTP(w, req)
	})
}

// established is the state of a TCP connection that neither end has closed (include/net/tcp_states.h).
const established = 1

// userOf returns the ID of the user whose process on this host has sent a request. It asks the kernel
// whose the other end of the connection is. The kernel gives closed sockets to root, so these do not
// count.
func userOf(req *http.Request) (int, error) {
	client, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return 0, err
	}
	own, _ := req.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if own == nil {
		return 0, fmt.Errorf("the request has no local address")
	}
	server := own.AddrPort()
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	// IPv4 connections of an IPv6 socket are in the second table.
	for _, table := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} {
		sockets, err := table()
		if err != nil {
			continue // without IPv6 there is no second table
		}
		for _, s := range sockets {
			if s.St == established && s.Inode != 0 && same(s.LocalAddr, s.LocalPort, client) && same(s.RemAddr, s.RemPort, server) {
				return int(s.UID), nil
			}
		}
	}
	return 0, fmt.Errorf("no process on this host has the connection from %s", client)
}

func same(ip net.IP, port uint64, address netip.AddrPort) bool {
	addr, ok := netip.AddrFromSlice(ip)
	return ok && port == uint64(address.Port()) && addr.Unmap() == address.Addr().Unmap()
}
