// Package suite is the conformance suite of the Gateway API as a test. It runs on a host that can
// reach the cluster: package gateway starts it there.
package suite

import (
	"os"
	"strings"
	"testing"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// TestGatewayAPI runs the suite against the cluster of KUBECONFIG. The features are those that the
// GatewayClass says it has. USABLE and UNUSABLE are addresses for Gateways that ask for one.
func TestGatewayAPI(t *testing.T) {
	if os.Getenv("REPORT") == "" {
		t.Fatal("this test needs a cluster: run `make conformance-gateway`")
	}
	options := conformance.DefaultOptions(t)
	options.GatewayClassName = "kedge"
	options.ReportOutputPath = os.Getenv("REPORT")
	options.RunTest = os.Getenv("RUN")
	options.CleanupBaseResources = true
	options.ConformanceProfiles = []suite.ConformanceProfileName{
		suite.GatewayHTTPConformanceProfileName,
		suite.GatewayGRPCConformanceProfileName,
		suite.GatewayTLSConformanceProfileName,
		suite.GatewayTCPConformanceProfileName,
		suite.GatewayUDPConformanceProfileName,
	}
	options.Implementation = confv1.Implementation{
		Organization: "kedge-dev",
		Project:      "kedge",
		URL:          "https://github.com/kedge-dev/kedge",
		Version:      os.Getenv("VERSION"),
		Contact:      []string{"https://github.com/kedge-dev/kedge/issues/new"},
	}
	options.UsableNetworkAddresses = addresses("USABLE")
	options.UnusableNetworkAddresses = addresses("UNUSABLE")
	conformance.RunConformanceWithOptions(t, options)
}

func addresses(variable string) (found []gwv1.GatewaySpecAddress) {
	kind := gwv1.IPAddressType
	for _, address := range strings.Fields(os.Getenv(variable)) {
		found = append(found, gwv1.GatewaySpecAddress{Type: &kind, Value: address})
	}
	return found
}
