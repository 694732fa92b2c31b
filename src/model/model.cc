#include "model/model.h"

#include <algorithm>

namespace megalith::model {

std::int64_t Model::CountLayers(Mixer mixer) const {
  return std::count_if(layers.begin(), layers.end(),
                       [&](const Layer& layer) { return layer.mixer == mixer; });
}

std::int64_t Model::CountLayers(FeedForward feed_forward) const {
  return std::count_if(layers.begin(), layers.end(),
                       [&](const Layer& layer) { return layer.feed_forward == feed_forward; });
}

std::int64_t Model::MaxBlocks() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const Layer& layer) { return layer.pushes_block; });
}

}  // namespace megalith::model
