package kubelet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// flagName is the flag of kedge by which users set the kubelet's arguments.
const flagName = "--kubelet-arg"

// ownArguments are the arguments of upstream's kubelet that users may not set, because kedge sets
// them. The value says what to do instead.
var ownArguments = map[string]string{
	"kubeconfig":                 "kedge connects the kubelet itself",
	"bootstrap-kubeconfig":       "kedge connects the kubelet itself",
	"rotate-certificates":        "kedge renews the kubelet's certificates itself",
	"rotate-server-certificates": "kedge renews the kubelet's certificates itself",
	"container-runtime-endpoint": "use --container-runtime-endpoint",
	"hostname-override":          "use --node-name",
	"node-ip":                    "use --node-ip",
	"v":                          "use --v",
	"vmodule":                    "use --v",
	"logging-format":             "kedge logs the messages of all components in one format",
	"version":                    "use kedge version",
}

// parseArguments parses arguments with upstream's own flags, bound to server.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/options/globalflags.go AddGlobalFlags
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/options/globalflags_linux.go addCadvisorFlags
func parseArguments(server *options.KubeletServer, arguments []string) error {
	flags := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	flags.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	flags.SetOutput(io.Discard) // most of the kubelet's flags print that they are deprecated
	flags.Usage = func() {}
	server.AddFlags(flags)
	// Upstream keeps some of cAdvisor's settings in process-wide variables.
	options.AddGlobalFlags(flags)

	var faults []error
	for _, argument := range arguments {
		name, _, _ := strings.Cut(argument, "=")
		if instead, own := ownArguments[strings.ReplaceAll(name, "_", "-")]; own {
			faults = append(faults, fmt.Errorf("%s %s: %s", flagName, argument, instead))
			continue
		}
		switch err := flags.Parse([]string{"--" + argument}); {
		case errors.Is(err, pflag.ErrHelp):
			faults = append(faults, fmt.Errorf("%s %s: no such argument", flagName, argument))
		case err != nil:
			faults = append(faults, fmt.Errorf("%s %s: %w", flagName, argument, err))
		case flags.NArg() > 0:
			faults = append(faults, fmt.Errorf("%s %q: write it as name=value", flagName, argument))
		}
	}
	return errors.Join(faults...)
}

// configurationFiles returns the files to read, in order: config, then the *.conf files in
// configDir and its subfolders.
func configurationFiles(config, configDir string) ([]string, error) {
	var files []string
	if config != "" {
		files = append(files, config)
	}
	if configDir != "" {
		err := filepath.WalkDir(configDir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && filepath.Ext(path) == ".conf" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s config-dir=%s: %w", flagName, configDir, err)
		}
	}
	return files, nil
}

// applyFiles applies the KubeletConfigurations in files over server's. Values are replaced, maps
// are merged.
func applyFiles(server *options.KubeletServer, files []string) error {
	scheme, _, err := kubeletscheme.NewSchemeAndCodecs()
	if err != nil {
		return fmt.Errorf("make kubelet configuration: %w", err)
	}
	versioned := new(kubeletv1beta1.KubeletConfiguration)
	if err := scheme.Convert(&server.KubeletConfiguration, versioned, nil); err != nil {
		return fmt.Errorf("convert kubelet configuration: %w", err)
	}
	for _, file := range files {
		content, err := datadir.ReadText(file)
		if err != nil {
			return fmt.Errorf("%s config: %w", flagName, err)
		}
		versioned.Kind, versioned.APIVersion = "", ""
		if err := yaml.UnmarshalStrict(content, versioned); err != nil {
			return fmt.Errorf("%s config: read %s: %w", flagName, file, err)
		}
		if got, want := versioned.GroupVersionKind(), kubeletv1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration"); got != want {
			return fmt.Errorf("%s config: %s must be of apiVersion %s and kind %s", flagName, file, want.GroupVersion(), want.Kind)
		}
	}
	if err := scheme.Convert(versioned, &server.KubeletConfiguration, nil); err != nil {
		return fmt.Errorf("%s config: %w", flagName, err)
	}
	return nil
}
