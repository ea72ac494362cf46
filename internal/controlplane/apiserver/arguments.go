package apiserver

import (
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kedge-dev/kedge/internal/controlplane/arguments"
)

// onePort is why arguments about the API server's own port are refused.
const onePort = "kedge serves the API on one port with certificates of its own; use https-listen-port, bind-address and tls-san"

var program = arguments.Program{Name: "kube-apiserver", Option: "kube-apiserver-arg", Refused: map[string]string{
	"bind-address":                     onePort,
	"secure-port":                      onePort,
	"bind-network":                     onePort,
	"cert-dir":                         onePort,
	"tls-cert-file":                    onePort + "; for a name of its own use tls-sni-cert-key",
	"tls-private-key-file":             onePort + "; for a name of its own use tls-sni-cert-key",
	"tls-cipher-suites":                onePort,
	"tls-curve-preferences":            onePort,
	"tls-min-version":                  onePort,
	"http2-max-streams-per-connection": onePort,
	"disable-http2-serving":            onePort,
	"permit-port-sharing":              onePort,
	"permit-address-sharing":           onePort,
}}

// CheckArguments returns all faults in the user's arguments of kube-apiserver. No API
// server needs to run.
func CheckArguments(args []string) error {
	return program.Parse(options.NewServerRunOptions().Flags(), args)
}
