package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// patience is how long a test waits for its tunnels to end, which takes milliseconds.
const patience = 30 * time.Second

// FuzzTarget asks an agent to dial anything. The agent dials only its kubelet, its pods,
// and the declared ports of its pods in the host's network.
func FuzzTarget(f *testing.F) {
	node := targets{
		nodeName:    "node-a",
		nodeIPs:     []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")},
		kubeletPort: 10250,
		podCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")},
		api: fake.NewClientset(
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
				Spec:       corev1.PodSpec{NodeName: "node-a"},
				Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.42.1.5"}, {IP: "127.0.0.1"}, {IP: "192.0.2.99"}, {IP: ""}}},
			},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hook"},
				Spec: corev1.PodSpec{NodeName: "node-a", HostNetwork: true,
					Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 9443}, {ContainerPort: -1}}}}},
				Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.10"}}},
			},
		),
	}
	for _, target := range []string{
		"node-a:10250", "192.0.2.10:10250", "[::ffff:192.0.2.10]:10250", "node-a:9443", "10.42.1.5:80", "10.42.1.5:0", "10.42.1.6:80",
		"127.0.0.1:10250", "[::1%lo]:80", "192.0.2.99:80", "node-a:+10250", "node-a:010250", ":10250", "[fe80::1%eth0]:80", "",
	} {
		f.Add(target)
	}
	pod := netip.MustParseAddr("10.42.1.5")
	f.Fuzz(func(t *testing.T, target string) {
		address, err := node.resolve(t.Context(), target)
		node.api.(*fake.Clientset).ClearActions()
		if err != nil {
			return
		}
		to, err := netip.ParseAddrPort(address)
		own := slices.Contains(node.nodeIPs, to.Addr())
		if err != nil || !(own && (to.Port() == 10250 || to.Port() == 9443)) && to.Addr() != pod {
			t.Errorf("%q is dialled as %q: %v", target, address, err)
		}
	})
}

// frames returns HTTP/2 frames.
func frames(f *testing.F, write func(*http2.Framer, func(...string) []byte) error) []byte {
	f.Helper()
	var out, headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	err := write(http2.NewFramer(&out, nil), func(fields ...string) []byte {
		headers.Reset()
		for i := 0; i < len(fields); i += 2 {
			if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
				f.Fatal(err)
			}
		}
		return slices.Clone(headers.Bytes())
	})
	if err != nil {
		f.Fatal(err)
	}
	return out.Bytes()
}

// answered returns the bytes with which an agent answers the first dial.
func answered(f *testing.F, data string, end bool, fields ...string) []byte {
	return frames(f, func(framer *http2.Framer, encode func(...string) []byte) error {
		if err := framer.WriteSettings(); err != nil {
			return err
		}
		if err := framer.WriteSettingsAck(); err != nil {
			return err
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(fields...), EndHeaders: true}); err != nil {
			return err
		}
		return framer.WriteData(1, end, []byte(data))
	})
}

// FuzzAgent makes an agent send a server anything after the upgrade. The dial through the
// tunnel and the tunnel end with their connection.
func FuzzAgent(f *testing.F) {
	f.Add([]byte{})
	f.Add(answered(f, "from the pod", true, ":status", "200"))
	f.Add(answered(f, "refused: it is none", true, ":status", "403"))
	f.Add(answered(f, "more", false, ":status", "101", "connection", "upgrade"))
	f.Add(answered(f, "", false, ":status", "-1", "content-length", "99999999999999999999"))
	f.Add(frames(f, func(framer *http2.Framer, _ func(...string) []byte) error {
		if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0}); err != nil {
			return err
		}
		return framer.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("no"))
	}))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		near, far := net.Pipe()
		var agent sync.WaitGroup
		agent.Go(func() { _, _ = io.Copy(io.Discard, far) })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		session, err := newSession(ctx, near)
		if err != nil {
			t.Fatal(err)
		}
		agent.Go(func() {
			_, _ = far.Write(sent)
			_ = far.Close()
		})
		conn, err := session.dial(ctx, "node-a:10250")
		if err == nil {
			received, _ := io.Copy(io.Discard, conn)
			_ = conn.Close()
			if received > int64(len(sent)) {
				t.Errorf("%d bytes were sent, and %d received", len(sent), received)
			}
		} else if size := len(err.Error()); size > 4*reasonLimit {
			t.Errorf("the agent's reason is %d bytes long", size)
		}
		select {
		case <-session.ended:
		case <-ctx.Done():
			t.Error("the tunnel outlives its connection")
		}
		session.close()
		agent.Wait()
	})
}

// FuzzServer makes a server send an agent anything after the upgrade. The agent dials
// only the kubelet, and its end of the tunnel ends with the connection.
func FuzzServer(f *testing.F) {
	kubelet, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = kubelet.Close() })
	go func() {
		for {
			conn, err := kubelet.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "the kubelet")
			_ = conn.Close()
		}
	}()
	address := netip.MustParseAddrPort(kubelet.Addr().String())
	connect := func(method, authority string, end bool) []byte {
		return frames(f, func(framer *http2.Framer, encode func(...string) []byte) error {
			if err := framer.WriteSettings(); err != nil {
				return err
			}
			fields := []string{":method", method, ":authority", authority}
			if method != http.MethodConnect {
				fields = append(fields, ":scheme", "http", ":path", "/")
			}
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(fields...), EndHeaders: true, EndStream: end})
		})
	}
	preface := []byte(http2.ClientPreface)
	f.Add([]byte{})
	f.Add(append(slices.Clone(preface), connect(http.MethodConnect, kubelet.Addr().String(), false)...))
	f.Add(append(slices.Clone(preface), connect(http.MethodConnect, "10.42.1.5:80", true)...))
	f.Add(append(slices.Clone(preface), connect(http.MethodConnect, "", true)...))
	f.Add(append(slices.Clone(preface), connect(http.MethodGet, kubelet.Addr().String(), true)...))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		near, far := net.Pipe()
		handler := &dialer{targets: &targets{
			nodeName: "node-a", nodeIPs: []netip.Addr{address.Addr()}, kubeletPort: address.Port(),
			podCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}, api: fake.NewClientset(),
		}}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		server, err := newHTTPServer(ctx, handler)
		if err != nil {
			t.Fatal(err)
		}
		var remote sync.WaitGroup
		remote.Go(func() { _, _ = io.Copy(io.Discard, far) })
		remote.Go(func() {
			_, _ = far.Write(sent)
			_ = far.Close()
		})
		_ = server.Serve(&listener{conn: &upgraded{Conn: near, reader: bufio.NewReader(near), closed: make(chan struct{})}})
		handler.end()
		remote.Wait()
		if ctx.Err() != nil {
			t.Error("the agent's end outlives its connection")
		}
	})
}
