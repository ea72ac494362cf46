// Command testserver is the program in the image of the tests: the servers and
// clients that a scenario needs inside a pod.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `testserver COMMAND
  serve [PORT]            HTTP: answers with host name, client address and what was asked; after SIGTERM
                          it finishes the requests that it has
  webhook CERT KEY        HTTPS 8443: /validate refuses objects labelled refuse=yes, /mutate labels them mutated=yes
  api CERT KEY            HTTPS 8443: the aggregated API test.kedge.dev/v1 with the resource echoes
  fetch URL [BYTES]       GET, without checking certificates; prints at most BYTES of the answer
  lookup host|srv|ptr|cname NAME
  sleep                   until SIGTERM, which it reports
  exit STATUS [SECONDS]   ends with STATUS after SECONDS
  dns NAME ADDRESS        a nameserver on UDP 53 that knows one name
  mtu INTERFACE           prints its MTU
  serve-measure PORT      answers measure
  serve-doors PORT        counts UDP and TCP clients at PORT; HTTP 8080 answers with the counts
  knock HOST:PORT         sends UDP datagrams and TCP connections without an end
  hold HOST:PORT          keeps one TCP connection to a serve-doors busy, and ends when it breaks
  watch-door HOST:PORT SECONDS  tries connections; prints when they begin to fail or to succeed
  measure ADDRESS SECONDS prints as JSON how fast the way to a serve-measure at HOST:PORT is
  load MILLICORES MIB     uses that much, and answers on port 8080 with JSON of what its cgroup has used
`

func main() {
	command := argument(1, "")
	var err error
	switch command {
	case "serve":
		err = serve(argument(2, "8080"))
	case "webhook":
		err = serveTLS(webhookHandler())
	case "api":
		err = serveTLS(apiHandler())
	case "fetch":
		err = fetch(argument(2, ""), argument(3, "1048576"))
	case "lookup":
		err = lookup(argument(2, ""), argument(3, ""))
	case "sleep":
		sleep()
	case "exit":
		seconds, _ := strconv.ParseFloat(argument(3, "0"), 64)
		status, _ := strconv.Atoi(argument(2, "0"))
		time.Sleep(time.Duration(seconds * float64(time.Second)))
		fmt.Println("ends with status", status)
		os.Exit(status)
	case "dns":
		err = serveDNS(argument(2, ""), argument(3, ""))
	case "mtu":
		var device *net.Interface
		if device, err = net.InterfaceByName(argument(2, "eth0")); err == nil {
			fmt.Println(device.MTU)
		}
	case "serve-measure":
		err = serveMeasure(argument(2, ""))
	case "measure":
		err = measure(argument(2, ""), argument(3, "2"))
	case "serve-doors":
		err = serveDoors(argument(2, ""))
	case "knock":
		err = knock(argument(2, ""))
	case "hold":
		err = hold(argument(2, ""))
	case "watch-door":
		err = watchDoor(argument(2, ""), argument(3, "0"))
	case "load":
		err = load(argument(2, "0"), argument(3, "0"))
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "testserver %s: %v\n", command, err)
		os.Exit(1)
	}
}

func argument(i int, fallback string) string {
	if len(os.Args) > i {
		return os.Args[i]
	}
	return fallback
}

// serve answers until SIGTERM. Then it accepts no more connections, and ends after the last request.
func serve(port string) error {
	server := &http.Server{Addr: ":" + port, Handler: http.HandlerFunc(echo)}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ended <- server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// echo answers with a line of each: who answers, whom, and what was asked. For the path /slow it takes
// half a second. The path /upgrade leads to upgrade.
func echo(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow":
		time.Sleep(500 * time.Millisecond)
	case "/upgrade":
		upgrade(w)
		return
	}
	hostname, _ := os.Hostname()
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	fmt.Fprintf(w, "hostname=%s\nclient=%s\nhost=%s\npath=%s\nforwarded=%s\nproto=%s\n", hostname, client, r.Host, r.URL.Path,
		r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"))
	fmt.Printf("served %s to %s\n", r.URL.Path, client)
}

// upgrade changes the protocol of the connection to one that repeats what it is told.
func upgrade(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(conn, buffered)
}

func serveTLS(handler http.Handler) error {
	server := &http.Server{Addr: ":8443", Handler: handler}
	return server.ListenAndServeTLS(argument(2, ""), argument(3, ""))
}

func fetch(url, limit string) error {
	bytes, err := strconv.ParseInt(limit, 10, 64)
	if err != nil {
		return err
	}
	client := http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, io.LimitReader(response.Body, bytes)); err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}

// lookup prints an answer per line.
func lookup(kind, name string) error {
	var answers []string
	var err error
	switch kind {
	case "host":
		answers, err = net.LookupHost(name)
	case "ptr":
		answers, err = net.LookupAddr(name)
	case "cname":
		var cname string
		cname, err = net.LookupCNAME(name)
		answers = []string{cname}
	case "srv":
		var records []*net.SRV
		_, records, err = net.LookupSRV("", "", name)
		for _, r := range records {
			answers = append(answers, fmt.Sprintf("%s:%d", r.Target, r.Port))
		}
	default:
		err = fmt.Errorf("unknown kind %q", kind)
	}
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(answers, "\n"))
	return nil
}

func sleep() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("sleeping")
	<-signals
	fmt.Println("got SIGTERM")
}
