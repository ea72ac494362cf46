package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	credentialproviderv1alpha1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1alpha1"
	credentialproviderv1beta1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	kubeletconfigv1alpha1 "k8s.io/kubernetes/pkg/kubelet/apis/config/v1alpha1"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// The settings of credential providers. They are arguments of the kubelet, too.
const (
	providersFolder = "image-credential-provider-bin-dir"
	providersConfig = "image-credential-provider-config"
)

// checkCredentialProviders says what is wrong with credential providers: their programs are in
// folder, and config is the file that names them, or a folder with such files. The kubelet reads
// both when it starts, and it ends the whole process if something is wrong. The rules for
// tokenAttributes are left to the kubelet.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_manager.go NewKubeGenericRuntimeManager
//upstream:relies-on k8s.io/kubernetes/pkg/credentialprovider/plugin/plugin.go RegisterCredentialProviderPlugins
//upstream:relies-on k8s.io/kubernetes/pkg/credentialprovider/plugin/config.go readCredentialProviderConfig validateCredentialProviderConfig
func checkCredentialProviders(folder, config string) error {
	if folder == "" || config == "" {
		return nil // the kubelet then uses neither
	}
	files, err := providerFiles(config)
	if err != nil {
		return fmt.Errorf("%s: %w", providersConfig, err)
	}
	scheme, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err == nil {
		err = kubeletconfigv1alpha1.AddToScheme(scheme)
	}
	if err != nil {
		return fmt.Errorf("make decoder of credential providers: %w", err)
	}
	var faults []error
	known := map[string]bool{}
	for _, file := range files {
		providers, err := readProviders(codecs.UniversalDecoder(), file)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", providersConfig, err))
			continue
		}
		for _, provider := range providers {
			if known[provider.Name] {
				faults = append(faults, fmt.Errorf("%s: %s: there are two providers called %q: keep one", providersConfig, file, provider.Name))
			}
			known[provider.Name] = true
			if fault := checkProvider(&provider); fault != "" {
				faults = append(faults, fmt.Errorf("%s: %s: provider %q: %s", providersConfig, file, provider.Name, fault))
			} else if program := filepath.Join(folder, provider.Name); !isProgram(program) {
				faults = append(faults, fmt.Errorf("%s: the provider %q needs the program %s, which is not there or not executable", providersFolder, provider.Name, program))
			}
		}
	}
	return errors.Join(faults...)
}

// providerFiles returns the files of a configuration, which is a file or a folder.
func providerFiles(config string) ([]string, error) {
	info, err := os.Stat(config)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{config}, nil
	}
	entries, err := os.ReadDir(config)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(config, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the folder %s has no *.yaml, *.yml or *.json file", config)
	}
	return files, nil
}

func readProviders(decoder runtime.Decoder, file string) ([]kubeletconfig.CredentialProvider, error) {
	content, err := datadir.ReadText(file)
	if err != nil {
		return nil, err
	}
	object, _, err := decoder.Decode(content, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	config, ok := object.(*kubeletconfig.CredentialProviderConfig)
	if !ok {
		return nil, fmt.Errorf("%s must be of apiVersion kubelet.config.k8s.io/v1 and kind CredentialProviderConfig", file)
	}
	if len(config.Providers) == 0 {
		return nil, fmt.Errorf("%s has no providers", file)
	}
	return config.Providers, nil
}

// checkProvider returns what is wrong with a provider, or an empty string.
func checkProvider(provider *kubeletconfig.CredentialProvider) string {
	versions := []string{
		credentialproviderv1.SchemeGroupVersion.String(), credentialproviderv1beta1.SchemeGroupVersion.String(), credentialproviderv1alpha1.SchemeGroupVersion.String(),
	}
	switch {
	case provider.Name == "" || provider.Name == "." || provider.Name == ".." || strings.ContainsAny(provider.Name, "/ "):
		return "name must be the name of a program in " + providersFolder
	case !slices.Contains(versions, provider.APIVersion):
		return fmt.Sprintf("apiVersion is %q: use one of %v", provider.APIVersion, versions)
	case len(provider.MatchImages) == 0:
		return "matchImages is empty: list the registries that it is for"
	case provider.DefaultCacheDuration == nil || provider.DefaultCacheDuration.Duration < 0:
		return "defaultCacheDuration is not set: use one such as 1h"
	}
	return ""
}

func isProgram(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}
