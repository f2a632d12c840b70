package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class MetadataTransactionCoordinatorOnClusterTest extends MetadataTransactionCoordinatorTest {}
